"""$SYS metrics of the log: writes, commit times, and sessions that are behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyrite.client import BlockingClient
from tests.support.process import BrokerProcess

PREFIX = "$SYS/broker/"
CONFIG = """
[mqtt]
sys_interval = 0.1
[limits]
max_inflight = 10
max_buffered_bytes = 2000
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "pyrite.toml").write_text(CONFIG)
    listen = "--listen=mqtt://127.0.0.1:0"
    with BrokerProcess("--config=pyrite.toml", "--data=data", listen, cwd=tmp_path) as broker:
        yield broker


class Figures:
    """The metrics of a broker as they are published."""

    def __init__(self, client: BlockingClient) -> None:
        self._messages = client.subscribe(f"{PREFIX}#")
        self.now: dict[str, str] = {}

    def wait_for(self, true: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """Return the metrics once a condition holds."""
        until = time.monotonic() + 20
        while not self.now or not true(self.now):
            assert time.monotonic() < until, self.now
            message = self._messages.get(timeout=10)
            self.now[message.topic.removeprefix(PREFIX)] = message.payload.decode()
        return self.now


def test_writes_are_counted_and_timed(broker: BrokerProcess, tmp_path: Path) -> None:
    with BlockingClient(broker.urls[0]) as watcher, BlockingClient(broker.urls[0]) as writer:
        figures = Figures(watcher)
        for _ in range(20):
            writer.publish("a", b"x" * 1_000, qos=1)
        figures.wait_for(lambda now: now.get("log/messages/written") == "20")
        figures.wait_for(lambda now: 20_000 < int(now["log/bytes/written"]) < 22_000)
        told = figures.wait_for(lambda now: float(now.get("log/commits/longest", 0)) > 0)
        assert float(told["log/commits/longest"]) < 10_000
        figures.wait_for(lambda now: int(now["log/commits/count"]) >= 20)
        figures.wait_for(lambda now: now.get("log/commits/longest") == "0.00")  # nothing came any more
        stream = tmp_path / "data" / "streams" / "default"

        def on_disk() -> str:
            return str(sum(path.stat().st_size for path in stream.iterdir()))

        figures.wait_for(lambda now: now.get("log/streams/default/bytes") == on_disk() != "0")


def test_counters_start_from_0_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text(CONFIG)
    for _ in range(2):
        arguments = ("--config=pyrite.toml", "--data=data", "--listen=mqtt://127.0.0.1:0")
        with (
            BrokerProcess(*arguments, cwd=tmp_path) as broker,
            BlockingClient(broker.urls[0]) as client,
        ):
            figures = Figures(client)
            figures.wait_for(lambda now: now.get("log/messages/written") == "0")
            client.publish("a", b"x", qos=1)
            figures.wait_for(lambda now: now.get("log/messages/written") == "1")


def test_a_slow_session_is_behind_until_it_has_caught_up(broker: BrokerProcess) -> None:
    with (
        BlockingClient(broker.urls[0]) as watcher,
        BlockingClient(broker.urls[0], max_waiting=1) as slow,
        BlockingClient(broker.urls[0]) as writer,
    ):
        figures = Figures(watcher)
        figures.wait_for(lambda now: now.get("clients/behind") == "0")
        messages = slow.subscribe("a", qos=1)
        for number in range(100):
            writer.publish("a", b"%d" % number + b" " * 500, qos=1)
        figures.wait_for(lambda now: now["clients/behind"] == "1")
        assert [int(messages.get(timeout=10).payload) for _ in range(100)] == list(range(100))
        messages.close()
        figures.wait_for(lambda now: now["clients/behind"] == "0")


def test_a_disconnected_session_is_not_behind(broker: BrokerProcess) -> None:
    with BlockingClient(broker.urls[0]) as watcher, BlockingClient(broker.urls[0]) as writer:
        figures = Figures(watcher)
        with BlockingClient(broker.urls[0], max_waiting=1) as slow:
            slow.subscribe("a", qos=1)
            for _ in range(100):
                writer.publish("a", b" " * 500, qos=1)
            figures.wait_for(lambda now: now.get("clients/behind") == "1")
        figures.wait_for(lambda now: now.get("clients/behind") == "0")


def test_consumers_and_their_unacknowledged_messages_are_counted(broker: BrokerProcess) -> None:
    with BlockingClient(broker.urls[0]) as client:
        figures = Figures(client)
        for _ in range(3):
            client.publish("a", b"x", qos=1)
        consumer = client.consumer("billing", "a")
        pulled = consumer.pull(2)
        figures.wait_for(lambda now: (now.get("consumers/count"), now.get("consumers/pending")) == ("1", "2"))
        consumer.ack(pulled)
        figures.wait_for(lambda now: now.get("consumers/pending") == "0")
        consumer.delete()
        figures.wait_for(lambda now: now.get("consumers/count") == "0")

"""`pyrite top`: a broker's metrics, once, as JSON, and on a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte
import pytest
from rich.console import Console

from pyrite.access.users import User, hash_password, write_users
from pyrite.cli.top_metrics import Sampler, TopSample
from pyrite.cli.top_view import View, size, sparkline
from pyrite.client import BlockingClient
from tests.support.process import BrokerProcess

from .harness import PYRITE, SECONDS, Commands, Running, free_port, serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def logging_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a log."""
    folder = tmp_path_factory.mktemp("top")
    (folder / "pyrite.toml").write_text("[mqtt]\nsys_interval = 0.3\n")
    arguments = ("--config=pyrite.toml", "--data=data", "--listen=mqtt://127.0.0.1:0")
    with BrokerProcess(*arguments, cwd=folder) as broker:
        yield broker


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PYRITE, "top", *arguments], capture_output=True, text=True, timeout=SECONDS)


def test_once_prints_a_table(commands: Commands) -> None:
    done = commands.run("top", "--once")
    assert (done.returncode, done.stderr) == (0, b"")
    lines = [line.split() for line in done.stdout.decode().splitlines()]
    assert any(line[:2] == ["messages", "in"] for line in lines)
    assert any(line[:1] == ["connected"] for line in lines)
    assert "log error" not in done.stdout.decode(), "this broker has no log"


def test_json_output_has_rates_and_metrics(logging_broker: BrokerProcess) -> None:
    top = Running(*PYRITE, "top", "--url", logging_broker.urls[0], "--json", "--interval", "0.1")
    try:
        top.wait_for('"rates"', "stdout")
        with BlockingClient(logging_broker.urls[0]) as client:
            until = time.monotonic() + SECONDS
            while True:
                for _ in range(10):
                    client.publish("a", b"x" * 100, qos=1)
                sample = json.loads(top.wait_for('"rates"', "stdout"))
                rates, metrics = sample["rates"], sample["figures"]
                if rates["publish/messages/received"] and metrics["log/streams/default/bytes"] > 1_000:
                    break  # stream sizes are one interval late
                assert time.monotonic() < until
        assert metrics["clients/connected"] == 2
        assert metrics["log/bytes/written"] > 100 * metrics["log/messages/written"]
        assert metrics["log/error"] == "none"
        assert sample["time"].endswith("Z")
        top.process.send_signal(signal.SIGINT)
        assert top.exit_code() == 0
        assert top.output("stderr") == b""
    finally:
        top.close()


def test_top_reconnects_to_a_broker_that_restarts() -> None:
    port = free_port()
    top = None
    try:
        with serving(port):
            top = Running(*PYRITE, "top", "-h", "127.0.0.1", "-p", str(port), "--json", "--interval", "0.1")
            top.wait_for('"rates"', "stdout")
        top.wait_for("Reconnecting")
        with serving(port) as (_, again), BlockingClient(f"mqtt://127.0.0.1:{again}") as client:
            until = time.monotonic() + SECONDS
            client.publish("a", b"x", qos=1)
            while json.loads(top.wait_for('"rates"', "stdout"))["figures"]["publish/messages/received"] != 1:
                assert time.monotonic() < until
            top.process.send_signal(signal.SIGTERM)
            assert top.exit_code() == 0
    finally:
        if top is not None:
            top.close()


def test_after_a_restart_with_a_log_every_metric_is_shown_again(tmp_path: Path) -> None:
    def started(port: int) -> BrokerProcess:
        return BrokerProcess(f"--listen=mqtt://127.0.0.1:{port}", "--data=data", cwd=tmp_path)

    with started(0) as broker:
        top = Running(*PYRITE, "top", "--url", broker.urls[0], "--json", "--interval", "0.1")
        before = json.loads(top.wait_for('"rates"', "stdout"))["figures"]
    try:
        top.wait_for("Reconnecting")
        with started(broker.port()):
            until = time.monotonic() + SECONDS
            while not before.keys() <= json.loads(top.wait_for('"rates"', "stdout"))["figures"].keys():
                assert time.monotonic() < until
    finally:
        top.close()


def test_the_screen_is_redrawn_in_place_on_a_terminal(logging_broker: BrokerProcess) -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(
        [*PYRITE, "top", "--url", logging_broker.urls[0], "--interval", "0.1"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    screen = pyte.Screen(100, 40)
    stream = pyte.ByteStream(screen)

    def read_until(true: Callable[[], bool]) -> None:
        until = time.monotonic() + SECONDS
        while not true():
            assert time.monotonic() < until, "\n".join(screen.display)
            stream.feed(os.read(ours, 65_536))

    try:
        read_until(lambda: any("▁▁▁" in line for line in screen.display))
        read_until(lambda: any(line.startswith("default") for line in screen.display))
        assert sum("messages in" in line for line in screen.display) == 1, "redrawn in place"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait(SECONDS)
        os.close(ours)


def test_a_broker_without_sys_topics_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text("[mqtt]\nsys_interval = 0\n")
    listen = "--listen=mqtt://127.0.0.1:0"
    with BrokerProcess("--config=pyrite.toml", "--ephemeral", listen, cwd=tmp_path) as broker:
        done = run("--url", broker.urls[0], "--once")
    assert done.returncode == 1
    assert "mqtt.sys_interval" in done.stderr


def test_a_user_without_access_to_sys_topics_is_refused(tmp_path: Path) -> None:
    write_users(tmp_path / "users", [User("eve", hash_password("three"))])
    (tmp_path / "pyrite.toml").write_text("[access]\nusers = 'users'\n")
    listen = "--listen=mqtt://127.0.0.1:0"
    with BrokerProcess("--config=pyrite.toml", "--ephemeral", listen, cwd=tmp_path) as broker:
        done = run("--url", broker.urls[0], "-u", "eve", "-P", "three")
    assert done.returncode == 0x87
    assert "$SYS/broker/#" in done.stderr


def test_a_refused_connection_is_an_error() -> None:
    done = run("-h", "127.0.0.1", "-p", str(free_port()))
    assert done.returncode == 1
    assert "pyrite serve" in done.stderr


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "100000"])
def test_an_invalid_interval_is_refused(interval: str) -> None:
    done = run("--interval", interval)
    assert done.returncode == 2
    assert "--interval" in done.stderr


def test_rates_are_computed_between_two_updates_of_the_broker() -> None:
    now = 10.0
    sampler = Sampler(lambda: now)
    name, topic = "bytes/sent", "$SYS/broker/bytes/sent"
    sampler.take(topic, b"100", retained=True)
    sampler.take("$SYS/broker/load/bytes/sent/1min", b"120.0", retained=True)
    assert sampler.sample().rates == {name: 2.0}, "the broker's one-minute average"
    now = 10.2
    sampler.take(topic, b"300", retained=False)
    assert sampler.sample().rates == {name: 2.0}, "a retained value belongs to an earlier update"
    now = 12.2
    sampler.take(topic, b"500", retained=False)
    assert sampler.sample().rates == {name: 100.0}
    now = 12.5
    assert sampler.sample().rates == {name: 100.0}, "no new update"
    assert sampler.sample().history[name] == (100.0,)
    now = 14.2
    sampler.take(topic, b"7", retained=False)
    assert sampler.sample().rates == {name: 0.0}, "a restarted broker counts from 0"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("log/error", "none", "No space left on device"),
        ("log/lost", "0", "1"),
        ("log/damaged", "0", "1"),
        ("publish/messages/dropped", "0", "1"),
        ("clients/behind", "0", "1"),
    ],
)
def test_unhealthy_metrics_are_red(name: str, good: str, bad: str) -> None:
    for value in (good, bad):
        console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=100)
        console.print(View(TopSample({name: value}, {}, {}), "broker"))
        assert ("\x1b[1;31m" in console.file.getvalue()) is (value == bad)  # type: ignore[attr-defined]


def test_named_readers_are_shown_with_their_lag_until_they_are_forgotten() -> None:
    sampler = Sampler(lambda: 0.0)
    sampler.take("$SYS/broker/log/readers/plant/lag", b"1234", False)
    sampler.take("$SYS/broker/version", b"1", False)
    sample = TopSample(dict(sampler._figures), {}, {})
    assert any(line.split() == ["plant", "1,234"] for line in drawn(sample, 80))
    sampler.take("$SYS/broker/log/readers/plant/lag", b"", False)
    assert not any("plant" in line for line in drawn(TopSample(dict(sampler._figures), {}, {}), 80))


def drawn(sample: TopSample, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=100)
    console.print(View(sample, "broker"))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


BUSY = TopSample(
    {
        "version": "pyrite version 0.1.0",
        "uptime": "1234567 seconds",
        "publish/messages/received": "12345678901",
        "publish/messages/sent": "12345678901",
        "bytes/received": "123456789012",
        "bytes/sent": "123456789012",
        "publish/messages/dropped": "0",
        "log/messages/written": "12345678901",
        "log/bytes/written": "123456789012",
        "log/commits/count": "1234567",
        "clients/connected": "100000",
        "clients/total": "100000",
        "clients/behind": "0",
        "clients/refused": "0",
        "subscriptions/count": "1000000",
        "shared_subscriptions/count": "0",
        "retained messages/count": "1000000",
        "messages/stored": "1000321",
        "consumers/count": "0",
        "consumers/pending": "0",
        "log/commits/median": "12.34",
        "log/commits/longest": "123.45",
        "loop/longest block": "123.45",
        "log/lost": "0",
        "log/damaged": "0",
        "log/error": "none",
        "log/streams/default/offset": "12345678901",
        "log/streams/default/bytes": "123456789012",
    },
    {"publish/messages/received": 1_234_567.0},
    {"publish/messages/received": (1.0,) * 40},
    {"rooms": {"state": "running", "batch": 41, "rows_per_second": 5_120.4, "lag": 12}},
)


@pytest.mark.parametrize("width", [40, 50, 60, 80, 120, 200])
def test_no_number_is_cut_at_any_width(width: int) -> None:
    lines = drawn(BUSY, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    (rates,) = (line for line in lines if line.startswith("messages in"))
    assert rates.split()[2] == "1,234,567"
    assert rates.split()[-1] == "12,345,678,901"
    assert ("▁" in rates or "█" in rates) is (width >= 50)
    for figure in ("commit, longest  123.45 ms", "123.5 GB", "1,000,000", "100,000"):
        assert figure in text


def test_the_screen_fits_80_by_24() -> None:
    assert len(drawn(BUSY, 80)) <= 24


def test_waiting_is_stored_without_retained() -> None:
    (line,) = (line for line in drawn(BUSY, 40) if line.startswith("waiting"))
    assert line.split()[1] == "321"


def test_pipelines_are_shown_with_their_status() -> None:
    sampler = Sampler(lambda: 0.0)
    sampler.take("$SYS/broker/version", b"pyrite", retained=True)
    sampler.take_pipeline("$pipelines/rooms", b'{"state": "running", "batch": 41, "lag": "[b]\\u001b"}')
    sampler.take_pipeline("$pipelines/other", b'{"state": "failed"}')
    assert [line.split() for line in drawn(sampler.sample(), 80)[-2:]] == [
        ["other", "failed", "-", "-", "-"],
        ["rooms", "running", "41", "-", "[b]\\u001b"],
    ]
    sampler.take_pipeline("$pipelines/other", b"")
    sampler.take_pipeline("$pipelines/another", b"[1]")
    assert sampler.sample().pipelines.keys() == {"rooms"}


def test_a_pipeline_is_shown_only_to_users_with_access(tmp_path: Path) -> None:
    write_users(tmp_path / "users", [User(name, hash_password("word")) for name in ("ann", "eve")])
    (tmp_path / "pyrite.toml").write_text(
        "[mqtt]\nsys_interval = 0.1\n[access]\nusers = 'users'\n"
        "[[access.rule]]\nusers = ['*']\nsubscribe = ['$SYS/#']\n"
        "[[access.rule]]\nusers = ['ann']\npublish = ['$pipelines/#']\nsubscribe = ['$pipelines/#']\n"
    )
    listen = "--listen=mqtt://127.0.0.1:0"
    with BrokerProcess("--config=pyrite.toml", "--ephemeral", listen, cwd=tmp_path) as broker:
        with BlockingClient(broker.urls[0], username="ann", password="word") as pipeline:
            pipeline.publish("$pipelines/rooms", b'{"state": "running"}', qos=1, retain=True)
        for name, seen in (("ann", {"rooms": {"state": "running"}}), ("eve", {})):
            done = run("--url", broker.urls[0], "-u", name, "-P", "word", "--json", "--once")
            assert (done.returncode, done.stderr) == (0, "")
            sample = json.loads(done.stdout)
            assert sample["pipelines"] == seen
            assert sample["figures"]["clients/connected"] >= 0


def test_sparklines_and_sizes_are_formatted() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([0, 50, 100]) == "▁▅█"
    assert [size(one) for one in (0, 999, 1_000, 2.5e6, 3e15)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "2.5 MB",
        "3,000.0 TB",
    ]

"""The process ends during a write: acknowledged messages reach sessions and Flight."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from pyrite.client import read_log
from pyrite.journal.gathering import MAX_ROW_BYTES
from pyrite.journal.verify import verify
from tests.conformance.client import Closed
from tests.conformance.wire import PUBACK, publish_packet
from tests.support.process import BrokerProcess

from .broker import Broker

ROOT = Path(__file__).parents[2]
LARGE = bytes(MAX_ROW_BYTES)
"""A payload that is not written to the tail, but as a record batch."""
PATCH = """
import sys
if "serve" in sys.orig_argv:
    import pyrite.journal.disk
    from tests.support.failpoints import Failpoints, FailpointFiles, Stop

    class Later(Failpoints):
        def at(self, name, operation, part=None):
            self.armed.pop({name!r}, None)
            if self.reached[{name!r}] >= {count}:
                self.armed[{name!r}] = Stop(short=True, really=True)
            super().at(name, operation, part)

    pyrite.journal.disk.Files = lambda: FailpointFiles(Later())
"""


@pytest.mark.parametrize(
    ("name", "count"), [("tail write", 20), ("segment write", 20), ("index write", 20), ("state commit", 3)]
)
def test_messages_acknowledged_before_the_end_reach_sessions_and_flight(
    stopped_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, count: int
) -> None:
    broker = stopped_broker
    (tmp_path / "sitecustomize.py").write_text(PATCH.format(name=name, count=count))
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
        broker.start()
    away = broker.lasting("away")
    away.subscribe("a", qos=1)
    away.close()
    publisher, kept = broker.client("publisher"), list[bytes]()
    try:
        until = time.monotonic() + 60  # the state is committed about once a second
        for number in itertools.takewhile(lambda _: time.monotonic() < until, itertools.count()):
            payload = b"%d" % number + (LARGE if number % 3 == 0 else b"")
            publisher.send(publish_packet("a", payload, qos=1, packet_id=1 + number % 1_000, version=5))
            publisher.expect(PUBACK)
            kept.append(payload)
    except (OSError, Closed):
        pass  # the connection is gone
    assert broker.wait_for_the_end() == 3
    assert len(kept) >= 4
    assert not [one for one in verify(broker.data) if one.first >= 0]
    listen = ("--listen=mqtt://127.0.0.1:0", "--listen=flight://127.0.0.1:0")
    with BrokerProcess(*listen, "--data", str(broker.data)) as again:
        found = read_log(again.urls[1]).column("payload").to_pylist()
    assert [one for one in found if one in set(kept)] == kept
    broker.start()
    away = broker.returning("away")
    assert [away.receive(10).payload for _ in kept] == kept

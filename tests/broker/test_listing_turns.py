"""Listing topics by `$pyrite/topics/list` is done in turns."""

from __future__ import annotations

from itertools import count

from pyrite.broker.timers import TURN
from pyrite.protocols.mqtt.packets import V5, Ping, Publish, encode
from tests.support.core import Core

PINGRESP = b"\xd0\x00"


def test_another_client_is_served_while_many_topics_are_listed() -> None:
    ticks = count()
    core = Core(clock=lambda: 100 + next(ticks) * TURN / 4)
    keeper = core.connect("keeper")
    for number in range(500):
        keeper.publish(f"kept/{number}", b"x", retain=True)
    lister, other = core.connect("lister"), core.connect("other")
    request = encode(Publish(b"$pyrite/topics/list", b"#", properties={"response_topic": "here"}), V5)
    lister.send(request * 3)
    assert core.broker.turns.has_work
    assert lister.transport.written.count(b"kept/") < 500
    other.send(Ping(12))
    assert other.transport.written.endswith(PINGRESP)
    turns = 0
    while core.broker.turns.has_work:
        core.broker.turns.take()
        core.broker.output.flush()
        turns += 1
        assert turns < 10_000
    assert lister.transport.written.count(b"kept/") == 1_500
    assert lister.transport.written.count(b"pyrite-count") == 3

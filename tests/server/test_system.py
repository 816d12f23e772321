"""$SYS: the broker's metrics as messages."""

from __future__ import annotations

import pytest

from pyrite.server.metrics import Metrics
from pyrite.server.system import System
from tests.support.core import V311, Client, Core

INTERVAL = 10.0


@pytest.fixture
def watched() -> tuple[Core, Client]:
    core = Core()
    System(Metrics(core.broker), INTERVAL, "1.2.3")
    watcher = core.connect("watcher")
    return core, watcher


def figures(watcher: Client) -> dict[str, str]:
    """Return all metrics as a new subscriber gets them."""
    watcher.received()
    watcher.subscribe("$SYS/#")
    messages = watcher.messages()
    assert all(message.retain for message in messages)
    watcher.unsubscribe("$SYS/#")
    return {
        message.topic.decode().removeprefix("$SYS/broker/"): message.payload.decode() for message in messages
    }


def test_the_version_is_published_at_once(watched: tuple[Core, Client]) -> None:
    assert figures(watched[1])["version"] == "pyrite version 1.2.3"


def test_a_wildcard_does_not_match_sys_topics(watched: tuple[Core, Client]) -> None:
    """[MQTT-4.7.2-1]"""
    core, watcher = watched
    watcher.subscribe("#", "+/broker/uptime")
    core.tick(INTERVAL)
    assert watcher.received() == []


def test_the_uptime_is_published_at_every_interval(watched: tuple[Core, Client]) -> None:
    core, watcher = watched
    watcher.subscribe("$SYS/broker/uptime")
    watcher.received()
    for number in range(1, 4):
        core.tick(INTERVAL)
        assert watcher.payloads() == [b"%d seconds" % (number * 10)]


def test_an_unchanged_metric_is_not_published_again(watched: tuple[Core, Client]) -> None:
    core, watcher = watched
    watcher.subscribe("$SYS/broker/clients/total")
    core.tick(INTERVAL)
    assert watcher.payloads() == [b"0", b"1"]
    core.tick(INTERVAL)
    assert watcher.received() == []


def test_clients_are_counted(watched: tuple[Core, Client]) -> None:
    core, watcher = watched
    core.connect("away", session_expiry=100).drop()
    core.connect("gone", session_expiry=1).drop()
    core.connect("here", V311)
    core.tick(INTERVAL)
    told = figures(watcher)
    assert told["clients/total"] == "3"
    assert told["clients/connected"] == told["clients/active"] == "2"
    assert told["clients/disconnected"] == told["clients/inactive"] == "1"
    assert told["clients/expired"] == "1"
    assert int(told["clients/maximum"]) >= 2


def test_messages_are_counted(watched: tuple[Core, Client]) -> None:
    core, watcher = watched
    reader = core.connect("reader")
    reader.subscribe("a/#", "$share/g/b")
    away = core.connect("away", session_expiry=1_000)
    away.subscribe("a/#", qos=1)
    away.drop()
    core.tick(INTERVAL)
    before = figures(watcher)
    core.tick(INTERVAL)
    before = figures(watcher)
    writer = core.connect("writer")
    writer.publish("a/b", b"x" * 100, qos=1)
    writer.publish("a/c", b"x" * 100, retain=True)
    core.tick(INTERVAL)
    after = figures(watcher)

    def more(name: str) -> int:
        return int(after[name]) - int(before[name])

    assert more("publish/messages/received") == 2
    assert more("publish/bytes/received") >= 200
    assert more("retained messages/count") == 1
    assert after["subscriptions/count"] == "3"
    assert after["shared_subscriptions/count"] == "1"
    assert more("messages/stored") == more("store/messages/count") == 2  # one waits, one is retained
    assert more("messages/received") >= 3
    assert more("bytes/received") > 200


def test_dropped_messages_are_counted() -> None:
    core = Core()
    System(Metrics(core.broker), INTERVAL, "1")
    small = core.connect("small", maximum_packet_size=30)
    small.subscribe("a")
    core.connect("writer").publish("a", b"x" * 100)
    core.tick(INTERVAL)
    assert figures(core.connect("watcher"))["publish/messages/dropped"] == "1"


def test_loads_are_averages_over_a_minute(watched: tuple[Core, Client]) -> None:
    core, watcher = watched
    writer = core.connect("writer")
    for _ in range(180):
        for _ in range(10):
            writer.publish("a", b"x")
        core.tick(INTERVAL)
    told = figures(watcher)
    for minutes in ("1min", "5min", "15min"):
        assert 50 < float(told[f"load/publish/received/{minutes}"]) <= 60
    for _ in range(60):
        core.tick(INTERVAL)
    told = figures(watcher)
    assert float(told["load/publish/received/1min"]) < 1
    assert float(told["load/publish/received/15min"]) > 20


def test_the_load_of_sent_messages_agrees_with_their_count(watched: tuple[Core, Client]) -> None:
    core, watcher = watched
    reader = core.connect("reader")
    reader.subscribe("a")
    core.tick(INTERVAL)
    core.tick(INTERVAL)
    before = figures(watcher)
    core.tick(INTERVAL)
    writer = core.connect("writer")
    for _ in range(1_000):
        writer.publish("a", b"x")
    core.tick(INTERVAL)
    after = figures(watcher)
    assert int(after["messages/sent"]) - int(before["messages/sent"]) >= 1_000
    assert float(after["load/messages/sent/1min"]) > 500

"""The topic policy over MQTT, and the requests that list, create and delete topics."""

from __future__ import annotations

import pytest

from pyrite.broker.catalog import TopicOptions
from pyrite.broker.limits import Limits
from pyrite.protocols.mqtt.packets import (
    V5,
    V311,
    Ack,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    WillMessage,
    Wish,
)
from tests.support.core import Client, Core

CREATED = TopicOptions("created", ["news"])
LISTED = TopicOptions("listed", ["NEWS", "WEATHER"])
TEXT = "there is no topic 'sport': create it first"


@pytest.fixture
def core() -> Core:
    return Core(topics=CREATED)


# What may be used


@pytest.mark.parametrize("qos", [1, 2])
def test_publishing_to_an_unlisted_topic_is_refused(core: Core, qos: int) -> None:
    client = core.connect("c")
    client.publish("news", b"x", qos=qos)
    assert client.only(Ack).reason in (0, 0x10)
    client.publish("sport", b"x", qos=qos)
    ack = client.only(Ack)
    assert (ack.reason, ack.properties) == (0x90, {"reason_string": TEXT})


def test_a_publisher_that_cannot_be_told_is_disconnected(core: Core) -> None:
    client = core.connect("c")
    client.publish("news", b"x")
    client.publish("sport", b"x")
    goodbye = client.only(Disconnect)
    assert (goodbye.reason, goodbye.properties) == (0x90, {"reason_string": TEXT})
    for qos in (0, 1, 2):
        old = core.connect("old", V311)
        old.publish("sport", b"x", qos=qos)
        assert old.closed
        assert old.received() == []


@pytest.mark.parametrize(("version", "reason"), [(V5, 0x8F), (V311, 0x80)])
def test_subscribing_to_an_unlisted_topic_is_refused(core: Core, version: int, reason: int) -> None:
    client = core.connect("c", version)
    wishes = [Wish(name, 0) for name in (b"news", b"sport", b"#", b"$share/g/sport", b"sport/+")]
    client.send(Subscribe(1, wishes, {}))
    suback = client.only(Suback)
    assert suback.reasons == [0, reason, 0, reason, 0]
    if version == V5:
        assert suback.properties == {"reason_string": TEXT}


def test_a_will_on_an_unlisted_topic_is_refused(core: Core) -> None:
    connack = core.wire().connect("c", will=WillMessage(b"sport", b"x", 0, False, {}))
    assert connack.reason == 0x90
    assert TEXT in connack.properties["reason_string"]


def test_a_topic_is_created_and_deleted_while_a_publisher_goes_on(core: Core) -> None:
    client = core.connect("c")
    reasons = []
    for change in (None, core.broker.catalog.create, None, core.broker.catalog.delete):
        if change is not None:
            assert change(b"sport") == ""
        client.publish("sport", b"x", qos=1)
        reasons.append(client.only(Ack).reason)
    assert reasons == [0x90, 0x10, 0x10, 0x90]


def test_a_fixed_list_of_topics_cannot_be_changed() -> None:
    core = Core(topics=LISTED)
    client = core.connect("c")
    assert client.subscribe("NEWS", "WEATHER", "SPORT") == [0, 0, 0x8F]
    client.publish("SPORT", b"x", qos=1)
    text = "there is no topic 'SPORT' here; allowed topics: NEWS, WEATHER"
    assert client.only(Ack).properties == {"reason_string": text}
    assert (
        core.broker.catalog.create(b"SPORT") == "the list of topics is fixed; allowed topics: NEWS, WEATHER"
    )
    assert "in the configuration" in core.broker.catalog.delete(b"NEWS")


def test_the_brokers_own_topics_are_not_listed(core: Core) -> None:
    client = core.connect("c")
    assert client.subscribe("$SYS/#", "$SYS/broker/uptime") == [0, 0]


# Requests


def ask(client: Client, action: str, payload: bytes = b"") -> tuple[list[Publish], dict[str, str]]:
    """Send a request; return the messages before the last one, and what the last one says."""
    client.publish(f"$pyrite/topics/{action}", payload, response_topic="answers", correlation_data=b"7")
    messages = client.messages()
    assert all(message.topic == b"answers" for message in messages)
    assert all(message.properties["correlation_data"] == b"7" for message in messages)
    return messages[:-1], dict(messages[-1].properties["user_property"])


def test_topics_are_created_listed_and_deleted() -> None:
    core = Core()
    client = core.connect("c")
    client.publish("weather/temp", b"98", retain=True)
    assert ask(client, "create", b"weather/rain") == ([], {"pyrite-count": "0"})
    assert ask(client, "create", b"weather/rain") == ([], {"pyrite-count": "0"})
    assert ask(client, "create", b"news") == ([], {"pyrite-count": "0"})
    found, end = ask(client, "list", b"weather/#")
    assert end == {"pyrite-count": "2"}
    assert [(dict(one.properties["user_property"]), one.payload) for one in found] == [
        ({"pyrite-topic": "weather/rain"}, b""),
        ({"pyrite-topic": "weather/temp", "pyrite-kept": "true"}, b"98"),
    ]
    assert ask(client, "list")[1] == {"pyrite-count": "3"}
    assert ask(client, "delete", b"weather/temp") == ([], {"pyrite-count": "0"})
    assert ask(client, "delete", b"weather/rain") == ([], {"pyrite-count": "0"})
    assert ask(client, "list", b"weather/#") == ([], {"pyrite-count": "0"})
    late = core.connect("late")
    late.subscribe("weather/#")
    assert late.payloads() == []


@pytest.mark.parametrize(
    ("action", "payload", "text"),
    [
        ("create", b"a/#", "a topic name must not contain wildcards"),
        ("create", b"", "a topic name must not be empty"),
        ("create", b"\xff", "the payload is not a topic: it is not UTF-8"),
        ("create", b"$SYS/x", "topics that begin with $ are reserved for the broker"),
        ("create", b"third", "too many topics"),
        ("delete", b"nothing", "there is no topic 'nothing'"),
        ("list", b"a#", "'#' must be the whole last level"),
        ("dance", b"", "expected $pyrite/consumers/NAME/ and"),
    ],
)
def test_an_invalid_request_is_answered_with_the_reason(action: str, payload: bytes, text: str) -> None:
    core = Core(limits=Limits(max_created_topics=2))
    client = core.connect("c")
    for topic in (b"one", b"two"):
        ask(client, "create", topic)
    found, end = ask(client, action, payload)
    assert not found
    assert end["pyrite-error"].startswith(text)

"""The commands of the line protocol one by one, and their errors."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.broker.access import Accept, Access, Credentials, Refuse
from pyrite.broker.catalog import TopicOptions
from pyrite.broker.limits import Limits
from pyrite.protocols.line.options import LineOptions
from tests.line.client import Came, LineClient
from tests.support.core import Core, no_internal_errors


def texts(came: list[Came]) -> list[str]:
    return [one.text for one in came]


# Publish and subscribe


def test_commands_typed_by_hand_work(core: Core) -> None:
    """The example of the documentation."""
    reader, writer = LineClient(core), LineClient(core)
    assert texts(reader.say("Subscribe news")) == ["SubAck news"]
    assert texts(writer.say("Publish news 5", "hello")) == ["PubAck news"]
    assert reader.came() == [Came("Message news 5", b"hello")]


@pytest.mark.parametrize(
    "payload", [b"", b" ", b"\n", b"\r\n", b"two\nlines\n", b"Publish x 5\nhello\n", bytes(256)]
)
@pytest.mark.parametrize("options", ["", " noack"])
def test_any_payload_is_delivered(core: Core, payload: bytes, options: str) -> None:
    reader, writer = LineClient(core), LineClient(core)
    reader.say("Subscribe a/#")
    answers = writer.say(b"Publish a/b %d%s\n%s" % (len(payload), options.encode(), payload))
    assert texts(answers) == ([] if options else ["PubAck a/b"])
    assert reader.came() == [Came(f"Message a/b {len(payload)}{options}", payload)]


def test_lines_may_end_as_in_telnet(core: Core) -> None:
    reader, writer = LineClient(core), LineClient(core)
    assert texts(reader.send(b"Subscribe news\r\n\r\n\n")) == ["SubAck news"]
    assert texts(writer.send(b"Publish news 2\r\nhi\r\nPing\r\n")) == ["PubAck news", "Pong"]
    assert reader.came() == [Came("Message news 2", b"hi")]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_answers_do_not_depend_on_how_the_bytes_are_cut(data: st.DataObject) -> None:
    """A run of similar or different messages among other commands."""
    frames = data.draw(
        st.lists(
            st.sampled_from(
                [
                    b"Publish a 3\nabc\n",
                    b"Publish a 3\nabc\r\n",
                    b"Publish a 3 noack\n\n\n\n\n",
                    b"Publish b 0 retain\n\n",
                    b"\n",
                    b"Ping 7\r\n",
                    b"Ack 12-14\n",
                    b"Publish a+ 2\nxy\n",
                ]
            ),
            max_size=12,
        )
    )
    whole = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    results = []
    for pieces in ([whole], [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]):
        with no_internal_errors():
            core = Core()
            reader, writer = LineClient(core), LineClient(core)
            reader.say("Subscribe #")
            reader.came()
            answers = [one for piece in pieces for one in writer.send(piece)]
            results.append((answers, reader.came()))
    assert results[0] == results[1]
    answered = [one for one in frames if one.startswith((b"Publish", b"Ping")) and b"noack" not in one]
    assert len(results[0][0]) == len(answered)
    assert len(results[0][1]) == sum(one.startswith((b"Publish a ", b"Publish b")) for one in frames)


def test_a_run_of_messages_is_one_batch(core: Core) -> None:
    reader, writer = LineClient(core), LineClient(core)
    reader.say("Subscribe a")
    answers = writer.send(b"".join(b"Publish a 4\n%04d\n" % number for number in range(3_000)))
    assert texts(answers) == ["PubAck a"] * 3_000
    assert [one.payload for one in reader.came()] == [b"%04d" % number for number in range(3_000)]


@pytest.mark.parametrize("different", [0, 1, 40, 99])
def test_one_different_message_in_a_run_keeps_its_topic(core: Core, different: int) -> None:
    reader, writer = LineClient(core), LineClient(core)
    reader.say("Subscribe +")
    topics = [b"b" if number == different else b"a" for number in range(100)]
    writer.send(b"".join(b"Publish %s 4\n%04d\n" % (topic, number) for number, topic in enumerate(topics)))
    expected = [(f"Message {topic.decode()} 4", b"%04d" % number) for number, topic in enumerate(topics)]
    came = reader.came()
    assert list(zip(texts(came), [one.payload for one in came], strict=True)) == expected


def test_a_payload_longer_than_declared_in_a_run_is_an_error(core: Core) -> None:
    writer = LineClient(core)
    frames = [b"Publish a 4\n%04d\n" % number for number in range(100)]
    frames[50] = b"Publish a 4\n00050\n"
    assert "bad-frame" in texts(writer.send(b"".join(frames)))[-1]


def test_topics_may_contain_spaces_and_percent_signs(core: Core) -> None:
    reader, writer = LineClient(core), LineClient(core)
    assert texts(reader.say("Subscribe living%20room/+")) == ["SubAck living%20room/+"]
    assert texts(writer.say("Publish living%20room/50%25 1", "x")) == ["PubAck living%20room/50%25"]
    assert texts(reader.came()) == ["Message living%20room/50%25 1"]


def test_puback_returns_the_id_of_the_message(core: Core) -> None:
    assert texts(LineClient(core).say("Publish a 1 id=7%207", "x")) == ["PubAck a id=7%207"]


def test_unsubscribe_ends_delivery(core: Core) -> None:
    reader, writer = LineClient(core), LineClient(core)
    reader.say("Subscribe a")
    assert texts(reader.say("Unsubscribe a")) == ["Ack Unsubscribe a"]
    writer.say("Publish a 1", "x")
    assert reader.came() == []
    assert texts(reader.say("Unsubscribe a")) == ["Error no-subscription Unsubscribe: no subscription to 'a'"]


# Kept values


def test_retained_values_are_sent_at_once_and_listed(core: Core) -> None:
    writer = LineClient(core)
    writer.say("Publish weather/temp 2 retain", "98", "Publish weather/wind 4 retain", "N\n5%")
    writer.say("Create weather/rain", "Create news")
    reader = LineClient(core)
    assert reader.say("Subscribe weather/#") == [
        Came("SubAck weather/#"),
        Came("Message weather/temp 2 retain", b"98"),
        Came("Message weather/wind 4 retain", b"N\n5%"),
    ]
    assert reader.say("List weather/#") == [
        Came("List 50", b"weather/rain\nweather/temp 98\nweather/wind N%0A5%25")
    ]
    assert reader.say("List") == [
        Came("List 55", b"news\nweather/rain\nweather/temp 98\nweather/wind N%0A5%25")
    ]
    assert texts(writer.say("Delete weather/temp", "Delete weather/temp")) == [
        "Ack Delete weather/temp",
        "Error no-topic Delete: there is no topic 'weather/temp'",
    ]
    assert reader.say("List weather/temp") == [Came("List 0", b"")]


# Acknowledged, and the latest value


def test_unacknowledged_messages_are_delivered_again(core: Core) -> None:
    reader, writer = LineClient(core), LineClient(core)
    reader.say("Connect reader resume ttl=100", "Subscribe a ack")
    writer.say(*["Publish a 1", "x"] * 3)
    came = reader.came()
    assert texts(came)[-3:] == ["Message a 1 n=1", "Message a 1 n=2", "Message a 1 n=3"]
    assert reader.say("Ack 1 3") == []
    reader.connection.hung_up()
    again = LineClient(core)
    assert texts(again.say("Connect reader resume ttl=100")) == [
        "Ack Connect reader resumed",
        "Message a 1 n=2",
    ]
    assert again.say("Ack 1-10") == []
    third = LineClient(core)
    assert texts(third.say("Connect reader resume ttl=100")) == ["Ack Connect reader resumed"]
    assert texts(again.came()) == ["Error displaced another connection has taken over this client id"]


def test_the_latest_value_replaces_what_waits(core: Core) -> None:
    reader, writer = LineClient(core), LineClient(core)
    reader.say("Subscribe t/+ latest")
    for number in range(5):
        writer.say("Publish t/a 1", str(number), "Publish t/b 1 noack", str(number))
    came = reader.came()
    assert [(one.text.split()[1], one.payload) for one in came] == [("t/a", b"0"), ("t/b", b"0")]
    first, second = (one.text.partition("n=")[2] for one in came)
    came = reader.say(f"Ack {first}")
    assert [(one.text.split()[1], one.payload) for one in came] == [("t/a", b"4")]
    assert reader.say("Ack " + came[0].text.partition("n=")[2]) == []
    assert [one.payload for one in reader.say(f"Ack {second}")] == [b"4"]
    writer.say("Publish t/a 1", "9")
    assert [one.payload for one in reader.came()] == [b"9"]


def latest_of(came: list[Came]) -> dict[str, tuple[str, bytes | None]]:
    """Return the number and the payload of messages, by topic."""
    words = [(one.text.split(), one.payload) for one in came if one.text.startswith("Message")]
    return {text[1]: (text[3].partition("n=")[2], payload) for text, payload in words}


def test_the_latest_value_waits_for_a_client_that_comes_back(core: Core) -> None:
    """Unacknowledged messages are sent again, followed by the newest message of each topic."""
    reader, writer = LineClient(core), LineClient(core)
    reader.say("Connect me resume ttl=100", "Subscribe t/+ latest")
    writer.say("Publish t/a 1", "1", "Publish t/b 1", "1", "Publish t/a 1", "2")
    assert {topic: payload for topic, (_, payload) in latest_of(reader.came()).items()} == {
        "t/a": b"1",
        "t/b": b"1",
    }
    reader.connection.hung_up()
    writer.say("Publish t/c 1", "1", "Publish t/c 1 noack", "2", "Publish t/b 1", "3", "Publish u 1", "x")
    again = LineClient(core)
    came = latest_of(again.say("Connect me resume ttl=100"))
    assert {topic: payload for topic, (_, payload) in came.items()} == {
        "t/a": b"2",
        "t/b": b"3",
        "t/c": b"2",
    }
    assert again.say("Ack " + " ".join(number for number, _ in came.values())) == []
    third = LineClient(core)
    assert texts(third.say("Connect me resume ttl=100")) == ["Ack Connect me resumed"]
    writer.say("Publish t/a 1", "4", "Publish t/a 1", "5")
    assert [one.payload for one in third.came()] == [b"5"]
    assert texts(third.say("Unsubscribe t/+")) == ["Ack Unsubscribe t/+"]
    fourth = LineClient(core)
    assert texts(fourth.say("Connect me resume ttl=100")) == ["Ack Connect me resumed"]


def test_latest_values_for_a_disconnected_client_are_bounded() -> None:
    core = Core(limits=Limits(max_queued_messages=3, max_queued_bytes=1_000))
    reader, writer = LineClient(core), LineClient(core)
    reader.say("Connect me resume ttl=100", "Subscribe # latest")
    reader.connection.hung_up()
    for topic in "abcd":
        writer.say(f"Publish {topic} 1", "1")
    writer.say("Publish a 2000", b"x" * 2_000, "Publish b 1", "2")
    again = LineClient(core)
    came = latest_of(again.say("Connect me resume ttl=100"))
    assert {topic: payload for topic, (_, payload) in came.items()} == {"a": b"1", "b": b"2", "c": b"1"}
    assert core.broker.figures.messages_dropped == 3  # d, the large one, and what b's second replaced


# Coming and going


def test_a_client_that_closes_its_half_is_answered_first(core: Core) -> None:
    LineClient(core).say("Publish kept/a 1 retain", "1", "Publish kept/b 1 retain", "2")
    client = LineClient(core)
    client.connection.feed(b"Subscribe kept/+\nPublish news 5\nhello\nPublish ne")
    client.connection.input_ended()
    assert texts(client.came()) == [
        "SubAck kept/+",
        "Message kept/a 1 retain",
        "Message kept/b 1 retain",
        "PubAck news",
    ]
    assert client.transport.closed
    client.connection.input_ended()
    assert client.transport.aborted


def test_sessions_are_resumed_and_deleted(core: Core) -> None:
    client = LineClient(core)
    assert texts(client.say("Connect me clean ttl=60", "Subscribe a ack")) == [
        "Ack Connect me new",
        "SubAck a",
    ]
    assert texts(client.say("Disconnect")) == ["Ack Disconnect"]
    assert client.transport.closed
    LineClient(core).say("Publish a 1", "x")
    again = LineClient(core)
    assert texts(again.say("Connect me resume ttl=60")) == ["Ack Connect me resumed", "Message a 1 n=1"]
    third = LineClient(core)
    assert texts(third.say("Connect me clean")) == ["Ack Connect me new"]
    third.say("Disconnect")
    assert texts(LineClient(core).say("Connect me resume")) == ["Ack Connect me new"]


def test_a_client_that_does_not_answer_is_reported_and_then_closed(
    core: Core, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    silent, there = LineClient(core), LineClient(core)
    silent.say("Subscribe a")
    for number in range(1, 5):
        core.tick(10.1)
        assert texts(there.came()) == ["Ping"]
        there.say("Pong")
        shown = [record.getMessage() for record in caplog.records]
        assert shown == [f"127.0.0.1:5000 has not answered Ping ({n} of 3)" for n in range(1, number)]
    assert texts(silent.came())[-1] == "Error silent no Pong received"
    assert silent.transport.closed
    assert not there.transport.closed
    assert not core.broker.subscriptions.route(b"a").targets


def test_without_missed_rounds_a_silent_client_is_pinged_and_never_closed(
    core: Core, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    silent = LineClient(core, LineOptions(missed_rounds=0))
    for _ in range(10):
        core.tick(10.1)
        assert texts(silent.came()) == ["Ping"]
    assert [record.getMessage() for record in caplog.records] == ["127.0.0.1:5000 has not answered Ping"]
    assert not silent.transport.closed


def test_connections_are_reported_to_the_observer(core: Core) -> None:
    seen: list[tuple[str, str]] = []
    client = LineClient(core, LineOptions(watch=lambda event, peer: seen.append((event, peer))))
    assert seen == [("Connected", "127.0.0.1:5000")]
    client.connection.lost()
    assert seen == [("Connected", "127.0.0.1:5000"), ("Disconnected", "127.0.0.1:5000")]


def test_any_frame_counts_as_an_answer(core: Core) -> None:
    client = LineClient(core, LineOptions(ping_interval=1, missed_rounds=1))
    for _ in range(5):
        core.tick(1.1)
        client.say("Publish a 1 noack", "x")
    assert not client.transport.closed


def test_the_end_of_the_broker_is_announced(core: Core) -> None:
    client = LineClient(core)
    client.say("Ping")
    client.connection.ended(0x8B)
    assert texts(client.came()) == ["Error ended the broker is shutting down"]
    assert client.transport.closed


# With MQTT


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_line_and_mqtt_clients_talk_to_each_other(core: Core, qos: int) -> None:
    mqtt = core.connect("mqtt")
    mqtt.subscribe("from/line", qos=qos)
    client = LineClient(core)
    client.say("Subscribe from/mqtt ack")
    client.say("Publish from/line 2 retain", "hi")
    assert mqtt.payloads() == [b"hi"]
    mqtt.publish("from/mqtt", b"hello", qos=qos)
    came = client.came()
    assert [one.payload for one in came] == [b"hello"]
    assert ("n=" in came[0].text) == bool(qos)
    late = core.connect("late")
    late.subscribe("from/#", qos=1)
    assert late.payloads() == [b"hi"]


def test_a_session_moves_from_mqtt_to_line(core: Core) -> None:
    """Unacknowledged QoS 2 messages are delivered to the line client and completed there."""
    mqtt = core.connect("me", session_expiry=100)
    mqtt.subscribe("a", qos=2)
    core.connect("writer").publish("a", b"x", qos=2)
    mqtt.drop()
    client = LineClient(core)
    came = client.say("Connect me resume ttl=100")
    assert [one.payload for one in came] == [None, b"x"]
    client.say("Ack " + came[1].text.partition("n=")[2])
    assert core.broker.sessions.by_id["me"].inflight_messages == 0


# What goes wrong


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Dance", "Error unknown-command 'Dance': expected one of Ack, Connect, Create"),
        ("Subscribe", "Error missing-word Subscribe: expected a topic filter"),
        ("Subscribe a#", "Error bad-topic Subscribe: '#' must be the whole"),
        ("Subscribe a colour=blue", "Error bad-option Subscribe: 'colour=blue' is unknown"),
        ("Subscribe a from=yesterday", "Error no-log Subscribe: this broker keeps no log"),
        ("Subscribe $share/g/a latest", "Error bad-option Subscribe: latest is not available for shared"),
        ("Subscribe %FF", "Error bad-topic Subscribe: the topic filter is not UTF-8"),
        ("Ack", "Error missing-word Ack"),
        ("Ack one", "Error bad-number Ack"),
        ("Pull nobody", "Error bad-consumer Pull: there is no consumer 'nobody'"),
        ("Register me a", "Error no-log Register"),
        ("Create a/#", "Error bad-topic Create: a topic name must not contain wildcards"),
        ("Create $SYS/x", "Error no-topic Create: topics that begin with $"),
        ("Connect me user=ann sesame", "Error bad-option Connect: word 3 is unknown: expected clean, resume"),
        ("Connect me pasword=sesame", "Error bad-option Connect: word 2 is unknown: expected clean, resume"),
        ("Connect me user=ann password=%sesame", "Error bad-option Connect: word 3 is not text"),
        ("Connect me ttl=long", "Error bad-option Connect: ttl=long: expected a number of seconds"),
        ("List a#", "Error bad-topic List"),
    ],
)
def test_an_invalid_command_is_answered_and_the_next_is_executed(core: Core, said: str, answer: str) -> None:
    client = LineClient(core)
    came = texts(client.say(said, "Ping"))
    assert came[0].startswith(answer)
    assert came[-1] == "Pong"
    assert len(came) == 2


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"Publish a+ 1\nx", "Error bad-topic Publish: a topic name must not contain wildcards"),
        (b"Publish %FF 1\nx", "Error bad-topic Publish: the topic is not UTF-8"),
        (b"Publish $SYS/a 1\nx", "Error not-authorized Publish"),
    ],
)
def test_the_payload_of_a_refused_message_is_skipped(core: Core, said: bytes, answer: str) -> None:
    came = texts(LineClient(core).say(said, "Ping"))
    assert came[0].startswith(answer)
    assert came[1:] == ["Pong"]


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"Publish a 3\nabcdef", "Error bad-frame Publish: expected a line end after the payload"),
        (b"Publish a many\n", "Error bad-number Publish"),
        (b"Publish a\n", "Error missing-word Publish"),
        (b"Publish a 1 loud\nx", "Error bad-option Publish"),
        (b"Publish a 99999999999\n", "Error too-long Publish: the payload exceeds 16777216 bytes"),
        (b"x" * 300_000, "Error too-long the line exceeds"),
    ],
)
def test_an_error_that_hides_the_next_frame_ends_the_connection(core: Core, said: bytes, answer: str) -> None:
    client = LineClient(core)
    came = texts(client.say(said, "Ping"))
    assert came[0].startswith(answer)
    assert len(came) == 1
    assert client.transport.closed


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"\n", b"Publish a 3\n", b"Ack 1-99999999999\n"])))
def test_arbitrary_bytes_cause_no_internal_error(pieces: list[bytes]) -> None:
    with no_internal_errors():
        client = LineClient(Core())
        for piece in pieces:
            client.send(piece)


def test_unlisted_topics_are_refused() -> None:
    with no_internal_errors():
        core = Core(topics=TopicOptions("created", ["news"]))
        client = LineClient(core)
        assert texts(client.say("Publish news 1", "x", "Publish sport 1", "x", "Subscribe sport")) == [
            "PubAck news",
            "Error no-topic Publish: there is no topic 'sport': create it first",
            "Error no-topic Subscribe: there is no topic 'sport': create it first",
        ]
        assert texts(client.say("Create sport", "Publish sport 1", "x", "Subscribe sport")) == [
            "Ack Create sport",
            "PubAck sport",
            "SubAck sport",
        ]
        assert texts(client.say("Create sport", "Create sport new", "Create golf new")) == [
            "Ack Create sport",
            "Error exists Create: topic 'sport' already exists",
            "Ack Create golf",
        ]
        assert texts(client.say("Delete sport", "Publish sport 1", "x", "Delete news")) == [
            "Ack Delete sport",
            "Error no-topic Publish: there is no topic 'sport': create it first",
            "Error no-topic Delete: topic 'news' is listed in the configuration and cannot be deleted",
        ]


class OnlyMe(Access):
    """Accepts one user, who may only use topics that begin with the user name."""

    checks_topics = True

    def authenticate(self, credentials: Credentials) -> Accept | Refuse:
        if credentials.username != "me" or credentials.password != b"secret":
            return Refuse(reason="who are you?")
        return Accept(username="me")

    def may_publish(self, credentials: Credentials, topic: str) -> bool:
        return topic.startswith("me/")

    def may_subscribe(self, credentials: Credentials, topic_filter: str) -> bool:
        return topic_filter.startswith("me/")


def test_access_rules_are_enforced() -> None:
    with no_internal_errors():
        core = Core(access=OnlyMe())
        stranger = LineClient(core)
        assert texts(stranger.say("Ping", "Subscribe me/a")) == ["Pong", "Error not-authorized who are you?"]
        assert stranger.transport.closed
        client = LineClient(core)
        assert texts(client.say("Connect x user=me password=secret")) == ["Ack Connect x new"]
        came = texts(client.say("Publish me/a 1", "x", "Publish you/a 1", "x", "Subscribe #", "List #"))
        assert came == [
            "PubAck me/a",
            "Error not-authorized Publish: not authorized: publish 'you/a'",
            "Error not-authorized Subscribe: not authorized: subscribe '#'",
            "Error not-authorized List: not authorized: subscribe '#'",
        ]


def test_messages_for_a_slow_reader_are_dropped_and_counted() -> None:
    with no_internal_errors():
        core = Core(limits=Limits(max_waiting_bytes=1_000))
        reader, writer = LineClient(core), LineClient(core)
        reader.say("Subscribe a")
        reader.transport.slow = True
        for _ in range(100):
            writer.say("Publish a 90 noack", b"x" * 90)
        assert 0 < len(reader.came()) < 20
        assert core.broker.figures.messages_dropped > 80

"""The log over the line protocol: durability before acknowledgement, replay, pull, and recovery."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyrite.broker.access import Access, Credentials
from tests.line.client import Came, LineClient
from tests.support.core import no_internal_errors
from tests.support.durable import Deferred, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with no_internal_errors():
        machine = Machine(tmp_path)
        yield machine
        machine.stop()


def texts(came: list[Came]) -> list[str]:
    return [one.text for one in came]


def fill(machine: Machine, count: int = 5) -> LineClient:
    """Publish some numbers on a/b."""
    writer = LineClient(machine.core)
    answers = writer.say(*[text for number in range(count) for text in ("Publish a/b 1", str(number))])
    assert texts(answers) == ["PubAck a/b"] * count
    return writer


def test_puback_follows_durability(tmp_path: Path) -> None:
    with no_internal_errors():
        machine = Machine(tmp_path, writing=Deferred)
        assert isinstance(machine.writing, Deferred)
        client = LineClient(machine.core)
        assert client.say("Publish a/b 1", "x", "Ping") == [Came("Pong")]
        assert machine.writing.step()
        assert texts(client.came()) == ["PubAck a/b"]
        assert [row["payload"] for row in machine.log("a")] == [b"x"]


@pytest.mark.parametrize("last", ["", "Disconnect\n"])
def test_commands_are_answered_before_the_connection_ends(tmp_path: Path, last: str) -> None:
    with no_internal_errors():
        machine = Machine(tmp_path, writing=Deferred)
        assert isinstance(machine.writing, Deferred)
        client = LineClient(machine.core)
        asked = f"Register work a/#\nCreate a/b\nPublish a/b 1\nx\nPull work 5\n{last}"
        assert client.send(asked.encode()) == []
        if not last:
            client.connection.input_ended()
        assert not client.transport.closed
        while machine.writing.step():
            pass
        assert texts(client.came()) == [
            "Ack Register work",
            "Ack Create a/b",
            "PubAck a/b",
            "Message a/b 1 n=65536 pull",
            "Ack Pull work 1",
            *(["Ack Disconnect"] if last else []),
        ]
        assert client.transport.closed


def test_a_subscription_to_latest_values_survives_a_restart(machine: Machine) -> None:
    LineClient(machine.core).say("Connect me resume ttl=100", "Subscribe a/# latest")
    machine.restart()
    again = LineClient(machine.core)
    assert texts(again.say("Connect me resume ttl=100")) == ["Ack Connect me resumed"]
    fill(machine)
    assert [one.payload for one in again.came()] == [b"4"], "the last of what came in one piece"
    fill(machine)
    assert again.came() == [], "it waits for an Ack"


def test_replay_is_followed_by_live_messages(machine: Machine) -> None:
    writer = fill(machine)
    reader = LineClient(machine.core)
    came = reader.say("Subscribe a/# from=earliest")
    assert came[0] == Came("SubAck a/#")
    assert [one.payload for one in came[1:]] == [b"0", b"1", b"2", b"3", b"4"]
    writer.say("Publish a/b 1", "5")
    assert [one.payload for one in reader.came()] == [b"5"]
    late = LineClient(machine.core)
    assert [one.payload for one in late.say("Subscribe a/# from=3 ack")[1:]] == [b"3", b"4", b"5"]
    assert texts(late.say("Subscribe a/# from=when"))[0].startswith("Error bad-option Subscribe: from=when")


def test_pull_delivers_each_message_once(machine: Machine) -> None:
    """Several clients share a consumer; a message is delivered again if it is not acknowledged in time."""
    fill(machine)
    one, two = LineClient(machine.core), LineClient(machine.core)
    assert texts(one.say("Register work a/#")) == ["Ack Register work"]
    came = one.say("Pull work 2")
    assert [part.payload for part in came] == [b"0", b"1", None]
    assert came[-1].text == "Ack Pull work 2"
    assert [part.payload for part in two.say("Pull work 10")] == [b"2", b"3", b"4", None]
    assert texts(two.say("Pull work")) == ["Ack Pull work 0"]
    first, second = (part.text.partition("n=")[2].split()[0] for part in came[:2])
    assert one.say(f"Ack {first}-{second}") == []
    machine.tick(31)
    one.came()
    assert [part.payload for part in one.say("Pull work 10")] == [b"2", b"3", b"4", None]
    assert texts(one.say("Register work b/#"))[0].startswith(
        "Error bad-consumer Register: consumer 'work' already exists"
    )
    assert texts(one.say("Register new a/# from=latest", "Pull new 5")) == [
        "Ack Register new",
        "Ack Pull new 0",
    ]


def test_state_survives_a_crash(machine: Machine) -> None:
    """Sessions, subscriptions, created topics, retained values, and the position of a consumer."""
    client = LineClient(machine.core)
    client.say(
        "Connect me resume ttl=1000", "Subscribe a/# ack", "Create a/new", "Create a/old", "Delete a/old"
    )
    client.say("Register work a/#", "Publish a/kept 1 retain", "k")
    client.say("Ack 1", "Pull work 1")
    machine.tick(2)
    machine.crash()
    machine.start()
    fill(machine, 2)
    again = LineClient(machine.core)
    came = again.say("Connect me resume ttl=1000")
    assert came[0].text == "Ack Connect me resumed"
    assert [one.payload for one in came[1:]][-2:] == [b"0", b"1"]
    assert again.say("List a/#") == [Came("List 14", b"a/kept k\na/new")]
    assert [one.payload for one in again.say("Pull work 10")] == [b"k", b"0", b"1", None]


def test_unregister_deletes_the_consumer(machine: Machine) -> None:
    """A new consumer of that name starts anew; messages of the old one can still be acknowledged."""
    fill(machine)
    one, two = LineClient(machine.core), LineClient(machine.core)
    one.say("Register work a/#")
    number = one.say("Pull work")[0].text.partition("n=")[2].split()[0]
    assert texts(two.say("Unregister work")) == ["Ack Unregister work"]
    assert one.say(f"Ack {number}") == []
    gone = "Error bad-consumer {}: there is no consumer 'work': create it first"
    assert texts(one.say("Pull work")) == [gone.format("Pull")]
    assert texts(one.say("Unregister work")) == [gone.format("Unregister")]
    assert texts(one.say("Unregister work a/#"))[0].startswith("Error bad-option Unregister")
    machine.restart()
    again = LineClient(machine.core)
    assert texts(again.say("Pull work")) == [gone.format("Pull")]
    assert texts(again.say("Register work a/#")) == ["Ack Register work"]
    assert [part.payload for part in again.say("Pull work")] == [b"0", None]


class NoPulling(Access):
    """Allows publishing and subscribing, but not pulling."""

    checks_topics = True

    def may_pull(self, credentials: Credentials, topic_filter: str) -> bool:
        return False


def test_deleting_a_consumer_needs_the_right_to_pull(machine: Machine) -> None:
    fill(machine)
    client = LineClient(machine.core)
    client.say("Register work a/#")
    before = machine.core.broker.access
    machine.core.broker.access = NoPulling()
    (refusal,) = texts(client.say("Unregister work"))
    assert isinstance(refusal, str)
    assert refusal.startswith("Error not-authorized ")
    machine.core.broker.access = before
    assert [part.payload for part in client.say("Pull work")] == [b"0", None]

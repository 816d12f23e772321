"""Bounds on the work that one line or datagram can cause, and on the time to log in."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.broker.access import Accept, Access, Credentials, Refuse
from pyrite.broker.limits import Limits
from pyrite.protocols.line.datagrams import MAX_STRANGERS_PER_HOST, Address
from pyrite.protocols.line.frames import MAX_WORDS
from pyrite.protocols.line.options import LineOptions
from pyrite.protocols.line.ranges import among, merge, within
from tests.line.client import Came, LineClient
from tests.line.test_datagrams import Network
from tests.support.core import Core

HERE: Address = ("192.0.2.1", 40_000)


def texts(came: list[Came]) -> list[str]:
    return [one.text for one in came]


# Ack

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


@settings(max_examples=200, deadline=None)
@given(RANGES, st.sets(st.integers(0, 60)), st.integers(0, 60), st.integers(0, 61))
def test_ranges_stand_for_the_numbers_in_them(
    pairs: list[tuple[int, int]], known: set[int], first: int, stop: int
) -> None:
    ranges = [range(low, high) for low, high in pairs]
    named = {number for one in ranges for number in one if first <= number < stop}
    merged = within(merge(ranges), first, stop)
    assert [number for one in merged for number in one] == sorted(named)
    found = [number for piece in among(merged, known) for number in piece]
    assert sorted(found) == sorted(named & known)


def test_a_large_range_costs_no_more_than_a_small_one() -> None:
    before = time.thread_time()
    known = range(0, 10**12, 10**9)
    found = [number for piece in among([range(0, 10**15)], known) for number in piece]
    assert found == list(known)
    assert time.thread_time() - before < 1


@pytest.mark.parametrize("words", [" 0-65535" * 990, " 1-99999999999" * 990, " 7" * MAX_WORDS])
def test_overlapping_ranges_are_handled_once(core: Core, words: str) -> None:
    reader, writer = LineClient(core), LineClient(core)
    reader.say("Subscribe a ack")
    for number in range(20):
        writer.say("Publish a 2", f"{number:2}")
    assert len(reader.came()) == 20
    session = reader.connection.session
    assert session is not None
    before = time.thread_time()
    for _ in range(20):
        assert reader.say(f"Ack{words}") == []
    assert time.thread_time() - before < 2
    assert session.inflight_messages == (19 if words.startswith(" 7") else 0)


def test_the_ranges_in_a_line_are_limited(core: Core) -> None:
    client = LineClient(core)
    assert client.say("Ack" + " 1-2" * MAX_WORDS) == []
    (refused,) = texts(client.say("Ack" + " 1-2" * (MAX_WORDS + 1)))
    assert refused == f"Error too-long Ack: expected at most {MAX_WORDS} numbers or ranges in a line"
    assert texts(client.say("Ping")) == ["Pong"]


def test_overlapping_ranges_in_a_datagram_are_handled_once(core: Core) -> None:
    network = Network(core)
    network.prove(HERE)
    network.send(HERE, b"Subscribe a ack\n")
    LineClient(core).say("Publish a 1", "x")
    assert network.came(HERE) == [b"Message a 1 n=1\nx\n"]
    before = time.thread_time()
    assert network.send(HERE, b"Ack" + b" 0-65535" * 990) == []
    assert time.thread_time() - before < 1
    core.tick(1)
    assert network.came(HERE) == []


# Lists and topics


def test_a_list_that_is_too_long_is_refused() -> None:
    core = Core(Limits(max_waiting_bytes=1_000))
    client = LineClient(core)
    for number in range(10):
        client.say(f"Publish many/{number} 200 retain", b"%d" % number * 200)
    client.say("Publish few 200 retain", b"\n" * 200)
    (refused,) = texts(client.say("List"))
    assert refused == "Error too-long List: the list has more than 1000 bytes: ask for fewer topics"
    assert client.say("List few") == [Came("List 604", b"few " + b"%0A" * 200)]


def test_a_list_over_udp_fits_into_a_datagram(core: Core) -> None:
    network = Network(core)
    network.prove(HERE)
    client = LineClient(core)
    client.say("Publish a 40000 retain", b"x" * 40_000, "Publish b 40000 retain", b"x" * 40_000)
    assert network.send(HERE, b"List a\n") == [b"List 40002\na " + b"x" * 40_000 + b"\n"]
    (refused,) = network.send(HERE, b"List #\n")
    assert refused.startswith(b"Error too-long List: ")


@pytest.mark.parametrize("said", ["Publish {} 1 retain\nx", "Subscribe {}", "Create {}", "List {}"])
def test_a_topic_is_no_longer_than_mqtt_allows(core: Core, said: str) -> None:
    watcher = core.connect("watcher")
    watcher.subscribe("#")
    client = LineClient(core)
    longest, too_long = "x" * 65_535, "x" * 65_536
    assert not texts(client.say(said.format(longest)))[0].startswith("Error")
    assert texts(client.say(said.format(too_long)))[0].startswith("Error bad-topic ")
    assert not watcher.closed


# A flood from one host


def test_unproven_addresses_of_one_host_do_not_displace_those_of_others(core: Core) -> None:
    network = Network(core)
    (ping,) = network.send(HERE, b"Subscribe a very long topic for the sake of room\n")
    for port in range(1, 2_000):
        network.send(("192.0.2.66", port), b"Subscribe something that is of no use at all\n")
    assert len(network.datagrams) == 1 + MAX_STRANGERS_PER_HOST
    answer = network.send(HERE, ping.replace(b"Ping", b"Pong"))
    assert len(answer) == 1
    assert not answer[0].startswith(b"Ping")


# The time to log in


class Guarded(Access):
    """Accepts clients that give a password."""

    def authenticate(self, credentials: Credentials) -> Accept | Refuse:
        return Accept(username=credentials.username) if credentials.password else Refuse()


def test_ping_does_not_extend_the_time_to_log_in() -> None:
    core = Core(Limits(connect_timeout=5), access=Guarded())
    stranger, known = LineClient(core), LineClient(core)
    assert texts(known.say("Connect ann user=ann password=secret")) == ["Ack Connect ann new"]
    for _ in range(6):
        if not stranger.transport.closed:
            stranger.say("Ping", "Pong")
        known.say("Ping")
        core.tick(1)
    assert stranger.transport.written.endswith(b"Error silent no log-in within the time limit\n")
    assert stranger.transport.closed
    core.tick(20)
    assert not known.transport.closed


def test_a_line_before_the_log_in_is_bounded_before_it_is_whole() -> None:
    core = Core(Limits(before_login=5_000), access=Guarded())
    stranger, known = LineClient(core), LineClient(core)
    assert stranger.send(b"Ping " + b"x" * 4_000) == []
    (refused,) = texts(stranger.send(b"x" * 1_000))
    assert refused == "Error too-long the line exceeds 5000 bytes before the log-in"
    assert stranger.transport.closed
    known.say("Connect ann user=ann password=secret")
    assert texts(known.say("Ping " + "x" * 100_000)) == ["Pong " + "x" * 100_000]


def test_the_payload_of_a_publish_before_the_log_in_is_not_waited_for() -> None:
    core = Core(access=Guarded())
    stranger = LineClient(core)
    (refused,) = texts(stranger.send(b"Publish a 1000000\n"))
    assert refused.startswith("Error not-authorized")
    assert stranger.transport.closed


def test_ping_over_udp_does_not_extend_the_time_to_log_in() -> None:
    core = Core(Limits(connect_timeout=5), access=Guarded())
    network = Network(core)
    network.prove(HERE)
    for _ in range(4):
        assert network.send(HERE, b"Ping\n") == [b"Pong\n"]
        core.tick(1)
    core.tick(2)
    assert len(network.datagrams) == 0


def test_without_access_rules_ping_keeps_a_client() -> None:
    core = Core(Limits(connect_timeout=5))
    client = LineClient(core, LineOptions(ping_interval=2))
    for _ in range(10):
        client.say("Pong")
        core.tick(1)
    assert not client.transport.closed

"""The line protocol over UDP: proof of address, retries, silent clients, and messages that do not fit."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.broker.access import Accept, Access, Credentials, Refuse
from pyrite.protocols.line.commands import COMMANDS
from pyrite.protocols.line.datagrams import MAX_STRANGERS, Address, Datagrams
from pyrite.protocols.line.options import LineOptions
from tests.line.client import LineClient
from tests.support.core import Core, no_internal_errors

HERE: Address = ("127.0.0.1", 40_000)
THERE: Address = ("127.0.0.1", 40_001)


class Network:
    """The broker's UDP socket, and what it sent to each address."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.sent: dict[Address, list[bytes]] = {}
        self.datagrams = Datagrams(core.broker, LineOptions(), self._send)
        self.came_from: dict[Address, int] = {}

    def _send(self, data: bytes, address: Address) -> None:
        self.sent.setdefault(address, []).append(data)

    def send(self, address: Address, *datagrams: bytes) -> list[bytes]:
        """Send datagrams from an address, and return the answers since the last call."""
        for datagram in datagrams:
            self.came_from[address] = self.came_from.get(address, 0) + len(datagram)
            self.datagrams.received(datagram, address)
            self.settle()
        return self.came(address)

    def settle(self) -> None:
        """Have the broker send everything."""
        self.core.flush()
        while self.core.broker.turns.has_work:
            self.core.broker.turns.take()
            self.core.flush()

    def came(self, address: Address) -> list[bytes]:
        """Return what was sent to an address since the last call."""
        self.settle()
        return self.sent.pop(address, [])

    def prove(self, address: Address) -> None:
        """Answer the challenge that proves an address."""
        (ping,) = self.send(address, b"Pong, I am here\n")
        assert ping.startswith(b"Ping ")
        (answer,) = self.send(address, ping.replace(b"Ping", b"Pong"))
        assert answer.startswith(b"Error unknown-command")


@pytest.fixture
def network(core: Core) -> Network:
    return Network(core)


def test_messages_travel_from_udp_to_tcp_and_back(core: Core, network: Network) -> None:
    network.prove(HERE)
    client = LineClient(core)
    client.say("Subscribe from/udp")
    assert network.send(HERE, b"Publish from/udp 5\nhello\n") == [b"PubAck from/udp\n"]
    assert [one.payload for one in client.came()] == [b"hello"]
    assert network.send(HERE, b"Subscribe from/tcp") == [b"SubAck from/tcp\n"]
    client.say("Publish from/tcp 2", "hi")
    assert network.came(HERE) == [b"Message from/tcp 2 n=65536\nhi\n"]


class Briefly(Access):
    """Accepts everyone for a minute."""

    def authenticate(self, credentials: Credentials) -> Accept | Refuse:
        return Accept(seconds=60)


def test_a_client_that_left_gets_no_expiry_notice() -> None:
    core = Core(access=Briefly())
    network = Network(core)
    for leave in (lambda: network.send(HERE, b"Disconnect\n"), lambda: core.tick(20)):
        network.prove(HERE)
        assert network.send(HERE, b"Connect brief\n") == [b"Ack Connect brief new\n"]
        leave()
        assert not len(network.datagrams)
        core.tick(70)
        assert network.came(HERE) == []


# An address must show that it is the sender's own


def test_a_command_from_an_unproven_address_is_executed_after_the_proof(network: Network) -> None:
    (ping,) = network.send(HERE, b"Subscribe news\n")
    assert ping.startswith(b"Ping ")
    assert not network.core.broker.sessions.by_id
    assert network.send(HERE, ping.replace(b"Ping", b"Pong")) == [b"SubAck news\n"]
    assert network.send(HERE, b"Ping 5\n") == [b"Pong 5\n"]


def test_a_wrong_answer_does_not_prove_an_address(network: Network) -> None:
    network.send(HERE, b"Subscribe news\n")
    assert network.send(HERE, b"Pong 0000000\n")[0].startswith(b"Ping ")
    assert not network.core.broker.sessions.by_id


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.binary(max_size=60)
        | st.sampled_from([b"Publish a 1\nx\n", b"Subscribe a from=earliest\n", b"Pull a 9\n"])
        | st.builds(
            lambda command, rest: f"{command}{rest}\n".encode(),
            st.sampled_from(sorted(COMMANDS)),
            st.sampled_from(["", " a", " #", " a #", " 0-9", " a user=b password=c"]),
        )
    )
)
def test_an_unproven_address_is_never_sent_more_than_it_sent(datagrams: list[bytes]) -> None:
    """The broker cannot be used to amplify traffic to a forged address."""
    with no_internal_errors():
        core = Core()
        network = Network(core)
        LineClient(core).say("Publish a 1000 retain", b"x" * 1_000)
        received = 0
        for datagram in datagrams:
            received += sum(map(len, network.send(HERE, datagram)))
            assert received <= network.came_from[HERE]
        core.tick(5)
        assert network.came(HERE) == []


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address"])
def test_a_client_beyond_the_limit_is_refused_with_a_reason(
    core: Core, network: Network, caplog: pytest.LogCaptureFixture, limit: str
) -> None:
    setattr(core.broker.limits, limit, 2)
    for port in (1, 2):
        network.prove(("127.0.0.1", port))
    where = " from this address" if limit == "max_connections_per_address" else ""
    for refused in (1, 2):
        (ping,) = network.send(HERE, b"Publish a 1 retain\nx\n")
        with caplog.at_level("INFO", "pyrite.connections"):
            (answer,) = network.send(HERE, ping.replace(b"Ping", b"Pong"))
        assert answer == f"Error full too many connections{where}\n".encode()
        assert core.broker.figures.connections_refused == refused
        assert caplog.records[-1].fields["reason"] == f"too many connections{where}"  # type: ignore[attr-defined]
    assert not core.broker.retained.values, "what it asked for was not done"
    if limit == "max_connections_per_address":
        network.prove(("127.0.0.2", 1))
    assert network.send(("127.0.0.1", 1), b"Disconnect\n") == [b"Ack Disconnect\n"]
    network.prove(HERE)


def test_unproven_addresses_take_little_memory(network: Network) -> None:
    """They do not displace known clients either."""
    network.prove(HERE)
    network.send(HERE, b"Subscribe a")
    for port in range(1, 5_000):
        network.send((f"10.0.{port // 256}.{port % 256}", port), b"Subscribe a\n")
    assert len(network.datagrams) == MAX_STRANGERS + 1
    assert len(network.core.broker.sessions.by_id) == 1
    LineClient(network.core).say("Publish a 1", "x")
    assert len(network.came(HERE)) == 1


# Delivery


def test_a_message_is_sent_again_until_it_is_acknowledged(core: Core, network: Network) -> None:
    """The intervals grow."""
    network.prove(HERE)
    network.send(HERE, b"Subscribe a")
    LineClient(core).say("Publish a 1", "x")
    (first,) = network.came(HERE)
    times = []
    for step in range(100):
        core.tick(0.1)
        again = network.came(HERE)
        if again:
            assert again == [first]
            times.append(step)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert 4 <= len(times) <= 8
    assert gaps == sorted(gaps)
    number = first.partition(b"n=")[2].partition(b"\n")[0]
    network.send(HERE, b"Ack " + number)
    core.tick(10)
    assert network.came(HERE) == []


def test_few_messages_are_in_flight_and_the_others_wait(core: Core, network: Network) -> None:
    network.prove(HERE)
    network.send(HERE, b"Subscribe a")
    writer = LineClient(core)
    for number in range(100):
        writer.say("Publish a 2 noack", f"{number:02d}")
    got = []
    came = network.came(HERE)
    assert len(came) == 32
    while came:
        got += [frame.split(b"\n")[1] for frame in came]
        numbers = [frame.partition(b"n=")[2].partition(b"\n")[0] for frame in came]
        came = network.send(HERE, *(b"Ack " + number for number in numbers))
    assert got == [b"%02d" % number for number in range(100)]


def test_the_latest_value_replaces_what_waits(core: Core, network: Network) -> None:
    network.prove(HERE)
    network.send(HERE, b"Subscribe a latest")
    writer = LineClient(core)
    for number in range(5):
        writer.say("Publish a 1", str(number))
    (first,) = network.came(HERE)
    assert first.endswith(b"\n0\n")
    (second,) = network.send(HERE, b"Ack " + first.partition(b"n=")[2].partition(b"\n")[0])
    assert second.endswith(b"\n4\n")


def test_the_latest_values_follow_a_client_to_another_port(core: Core, network: Network) -> None:
    network.prove(HERE)
    network.send(HERE, b"Connect me resume\n", b"Subscribe # latest\n")
    writer = LineClient(core)
    for number in range(40):
        writer.say(f"Publish t/{number} 1", "1", f"Publish t/{number} 1", "2")
    assert len(network.came(HERE)) == 32, "as many as may be under way"
    network.prove(THERE)
    got, came = [], network.send(THERE, b"Connect me resume\n")
    assert came[0] == b"Ack Connect me resumed\n"
    came = came[1:]
    assert len(came) == 32
    while came:
        got += [tuple(frame.split(b"\n")[:2]) for frame in came]
        numbers = [frame.partition(b"n=")[2].partition(b"\n")[0] for frame in came]
        came = network.send(THERE, *(b"Ack " + number for number in numbers))
    assert {payload for _, payload in got} == {b"2"}
    assert len({head.split()[1] for head, _ in got}) == len(got) == 40


def test_a_duplicate_command_is_executed_once(core: Core, network: Network) -> None:
    network.prove(HERE)
    client = LineClient(core)
    client.say("Subscribe a")
    for _ in range(3):
        assert network.send(HERE, b"Publish a 1 id=7\nx\n") == [b"PubAck a id=7\n"]
    assert network.send(HERE, b"Publish a 1 id=8\ny\n") == [b"PubAck a id=8\n"]
    assert [one.payload for one in client.came()] == [b"x", b"y"]


def test_a_duplicate_connect_is_answered_twice(network: Network) -> None:
    network.prove(HERE)
    assert network.send(HERE, b"Connect me") == [b"Ack Connect me new\n"]
    assert network.send(HERE, b"Connect me") == [b"Ack Connect me resumed\n"]
    assert network.send(HERE, b"Connect you") == [
        b"Error connected Connect: already connected; Connect must be the first command\n"
    ]


@pytest.mark.parametrize("options", ["", " ack"])
def test_a_message_that_does_not_fit_is_announced(core: Core, network: Network, options: str) -> None:
    network.prove(HERE)
    network.send(HERE, b"Subscribe a" + options.encode())
    LineClient(core).say("Publish a 70000", b"x" * 70_000, "Publish a 1", "y")
    told, message = network.came(HERE)
    assert told == b"Error too-long a message of 70000 bytes on 'a' does not fit into a datagram\n"
    assert message.endswith(b"\ny\n")


# Coming back, and silence


def test_a_client_that_returns_from_another_port_keeps_its_subscriptions(
    core: Core, network: Network
) -> None:
    network.prove(HERE)
    network.send(HERE, b"Connect me resume\n", b"Subscribe a ack\n")
    network.prove(THERE)
    assert network.send(THERE, b"Connect me resume\n") == [b"Ack Connect me resumed\n"]
    assert network.came(HERE)[-1].startswith(b"Error displaced")
    LineClient(core).say("Publish a 1", "x")
    assert network.came(THERE) == [b"Message a 1 n=1\nx\n"]
    assert network.came(HERE) == []


def test_a_silent_client_is_forgotten(core: Core, network: Network) -> None:
    network.prove(HERE)
    network.prove(THERE)
    for address in (HERE, THERE):
        network.send(address, b"Subscribe a\n")
    for _ in range(4):
        core.tick(10)
        network.send(HERE, b"Ping\n")
    assert len(network.datagrams) == 1
    core.tick(16)
    assert len(network.datagrams) == 0
    core.tick(60)
    assert not core.broker.sessions.by_id


def test_a_ping_keeps_a_client_alive_for_10_s(core: Core, network: Network) -> None:
    network.prove(HERE)
    writer = LineClient(core)
    assert network.send(HERE, b"Subscribe a latest\n", b"Ping\n") == [b"SubAck a\n", b"Pong\n"]
    core.tick(9.8)
    writer.say("Publish a 1", "1")
    assert network.came(HERE) == [b"Message a 1 n=65536\n1\n"]
    assert network.send(HERE, b"Ack 65536\n", b"Ping\n") == [b"Pong\n"]
    core.tick(10.1)
    writer.say("Publish a 1", "2")
    assert network.came(HERE) == []
    assert len(network.datagrams) == 1, "the next Ping may be a little late"
    core.tick(0.5)
    assert network.send(HERE, b"Ping\n") == [b"Message a 1 n=65537\n2\n", b"Pong\n"]
    core.tick(12.1)
    assert len(network.datagrams) == 0
    writer.say("Publish a 1", "3")
    assert network.came(HERE) == []


def test_a_forgotten_client_is_told_in_the_answer_to_its_ping(core: Core, network: Network) -> None:
    network.prove(HERE)
    network.send(HERE, b"Subscribe a\n")
    assert network.send(HERE, b"Ping alive-1\n") == [b"Pong alive-1\n"]
    core.tick(20)
    (challenge,) = network.send(HERE, b"Ping alive-2\n")
    assert challenge.startswith(b"Ping ")
    assert network.send(HERE, challenge.replace(b"Ping", b"Pong")) == [b"Pong alive-2\n"]


def test_an_unproven_ping_shorter_than_the_challenge_is_answered_with_pong(network: Network) -> None:
    assert network.send(HERE, b"Ping\n") == [b"Pong\n"]


def test_a_datagram_holds_one_whole_frame(network: Network) -> None:
    network.prove(HERE)
    wrong = b"Error bad-frame expected one complete frame per datagram; is the length right?\n"
    assert network.send(HERE, b"Publish a 10\nabc\n") == [wrong]
    assert network.send(HERE, b"Publish a 1\nabc\n")[0].startswith(b"Error bad-frame Publish")
    assert network.send(HERE, b"Dance\n")[0].startswith(b"Error unknown-command")
    assert network.send(HERE, b"Publish a 3\nabc\n") == [b"PubAck a\n"]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.binary(max_size=60) | st.sampled_from([b"Publish a 3 id=1\nabc\n", b"Ack 1-9\n", b"Subscribe #"])
    )
)
def test_arbitrary_datagrams_cause_no_internal_error(datagrams: list[bytes]) -> None:
    with no_internal_errors():
        network = Network(Core())
        network.prove(HERE)
        for datagram in datagrams:
            network.send(HERE, datagram)
        network.core.tick(1)
        network.came(HERE)
        assert network.send(HERE, b"Publish a 1 id=last\nx\n")[-1] == b"PubAck a id=last\n"

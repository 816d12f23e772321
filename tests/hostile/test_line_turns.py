"""Commands of the line protocol, in the largest read or in datagrams, are handled in short turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pyrite.protocols.line.connection import LineConnection
from pyrite.protocols.line.datagrams import Address, Datagrams
from pyrite.protocols.line.options import LineOptions
from pyrite.server.sockets import READ_SIZE
from tests.hostile.world import World
from tests.support.core import RecordingTransport, no_internal_errors

LONGEST_TURN = 0.010
"""Seconds of CPU time. A turn is 2 ms; the rest is for its last step, and for slow machines."""
ATTEMPTS = 3
"""Another process may slow a turn down, but not the same one each time."""
DATAGRAM = 65_000
"""Bytes of commands in one datagram."""
HERE: Address = ("192.0.2.1", 40_000)

pytestmark = pytest.mark.xdist_group("line turns")  # the world is made once

Says = Callable[[int], bytes]
"""Returns the command of that number."""


def line(text: str) -> Says:
    """Return commands of one kind, with the number in place of {n}."""
    return lambda number: text.format(n=number).encode() + b"\n"


COMMANDS: dict[str, Says] = {
    "Connect": line("Connect other-{n}"),
    "Publish": line("Publish log/{n} 1\nx"),
    "Publish noack": line("Publish news/{n} 1 noack\nx"),
    "Publish retain": line("Publish mine/{n} 1 retain\nx"),
    "Publish, one topic": line("Publish log/one 1\nx"),
    "Publish, received": line("Publish received/x 1\nx"),
    "Publish, removed": line("Publish kept/{n}/{n} 0 retain\n"),
    "Publish, wrong": line("Publish a/# 1\nx"),
    "Publish, deep": line("Publish " + "a/" * 127 + "{n} 1\nx"),
    "Publish, escaped": lambda number: b"Publish " + b"%41" * 20_000 + b" 1 noack\nx\n",
    "Publish, long topic": lambda number: b"Publish " + b"%20" * 60_000 + b"%d 1\nx\n" % (number % 10),
    "Subscribe": line("Subscribe a/{n} ack"),
    "Subscribe, all": line("Subscribe #"),
    "Subscribe, all with ack": line("Subscribe # ack"),
    "Subscribe, latest": line("Subscribe # latest"),
    "Subscribe, nothing": line("Subscribe +/+/+/nothing"),
    "Subscribe, wild": line("Subscribe +/{n}/+"),
    "Subscribe, deep": line("Subscribe " + "+/" * 127 + "{n}"),
    "Subscribe, shared": line("Subscribe $share/group/kept/{n}/#"),
    "Subscribe, past": line("Subscribe log/{n} from=earliest"),
    "Unsubscribe": line("Unsubscribe a/{n}"),
    "Unsubscribe, all": line("Unsubscribe #"),
    "Ack": line("Ack {n}"),
    "Ack, range": line("Ack 0-65535 65536-999999999999"),
    "Ack, ranges": lambda number: b"Ack" + b" 0-65535" * 990 + b"\n",
    "Ack, disjoint ranges": lambda number: (
        b"Ack " + b" ".join(b"%d-%d" % (n, n + 60) for n in range(1, 60_000, 70)) + b"\n"
    ),
    "Ack, too many": lambda number: b"Ack" + b" 1" * 30_000 + b"\n",
    "Ping": line("Ping {n}"),
    "Pong": line("Pong"),
    "List": line("List"),
    "List, some": line("List kept/{n}/#"),
    "List, nothing": line("List +/+/+/nothing"),
    "List, one": line("List kept/0/0"),
    "Create": line("Create new/{n}"),
    "Create, the same": line("Create created/0/0"),
    "Delete": line("Delete created/{n}/{n}"),
    "Delete, retained": line("Delete kept/{n}/{n}"),
    "Register": line("Register consumer-{n} log/#"),
    "Register, the same": line("Register consumer #"),
    "Unregister": line("Unregister consumer-{n}"),
    "Pull": line("Pull consumer 1000"),
    "Pull, unknown": line("Pull nothing"),
    "unknown": line("Nonsense {n}"),
    "unknown, long": lambda number: b"\xff" * 60_000 + b"\n",
    "empty": lambda number: b"\n" * 100,
    "escapes": lambda number: b"Ping " + b"%00" * 20_000 + b"\n",
    "options": lambda number: b"Subscribe a/b" + b" ack" * 10_000 + b"\n",
}


def run_of(*names: str, size: int = READ_SIZE) -> bytes:
    """Return commands up to the size of the largest read."""
    parts: list[bytes] = []
    length = number = 0
    while True:
        for name in names:
            parts.append(COMMANDS[name](number))
            length += len(parts[-1])
            if length > size:
                return b"".join(parts[:-1]) or parts[-1]
        number += 1


SLOW = 0.1
"""Seconds of CPU time that a client may go on with one read: what takes longer goes on as it began."""
ALTERNATING: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in COMMANDS},
    "everything": tuple(COMMANDS),
    "Subscribe and Unsubscribe": ("Subscribe, all with ack", "Unsubscribe, all"),
    "Subscribe and Publish": ("Subscribe", "Publish, received", "Ack"),
    "Pull and Ack": ("Register, the same", "Pull", "Ack, range"),
    "Register and Unregister": ("Register", "Unregister"),
    "Create and Delete": ("Create", "Delete", "Create, the same"),
    "Subscribe, latest, and Publish": ("Subscribe, latest", "Publish noack", "Ack, range"),
    "List and Publish": ("List, some", "Publish retain"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with no_internal_errors():
        world = World(tmp_path_factory.mktemp("world"))
        yield world
        world.close()


def over_tcp(world: World, names: tuple[str, ...]) -> LineConnection:
    """Send commands as one read."""
    client = LineConnection(world.broker, LineOptions(), RecordingTransport(), "192.0.2.1", "192.0.2.1:1")
    world.feed(client, b"Connect attacker ttl=60\n")
    world.run(lambda: client.session is not None)
    world.feed(client, run_of(*names))
    return client


def over_udp(world: World, names: tuple[str, ...]) -> LineConnection:
    """Send commands in datagrams, as many as fit into each, and one in each."""
    sent: list[bytes] = []
    datagrams = Datagrams(world.broker, LineOptions(), lambda data, address: sent.append(data))
    datagrams.received(b"Subscribe nothing\n", HERE)
    datagrams.received(next(one for one in sent if one.startswith(b"Ping ")).replace(b"Ping", b"Pong"), HERE)
    (client,) = datagrams.connections()
    alone = [COMMANDS[name](number) for number in range(5) for name in names]
    for datagram in (run_of(*names, size=DATAGRAM), *(one for one in alone if len(one) <= DATAGRAM)):
        world.measure(lambda datagram=datagram: datagrams.received(datagram, HERE), names)  # type: ignore[misc]
        world.measure(world.broker.output.flush, "flush")
    return client


@pytest.mark.parametrize("send", [over_tcp, over_udp])
@pytest.mark.parametrize("name", ALTERNATING)
def test_no_turn_takes_long(world: World, name: str, send: Callable[..., LineConnection]) -> None:
    for attempt in range(ATTEMPTS):
        world.watch()
        client = send(world, ALTERNATING[name])
        world.run(lambda client=client: not client.interrupted, SLOW)  # type: ignore[misc]
        session = client.session
        world.measure(client.lost, "lost")
        if session is not None and not session.has_ended:
            world.measure(lambda session=session: world.broker.sessions.end(session), "end")  # type: ignore[misc]
        world.run(lambda: True, SLOW)
        if world.longest <= LONGEST_TURN:
            return
        assert attempt < ATTEMPTS - 1, f"{world.longest * 1_000:.1f} ms: {world.culprit}"

"""Whatever a client says in the line protocol, in the largest read or in datagrams, no turn takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pyrite.protocols.line.datagrams import Address
from pyrite.server.sockets import READ_SIZE
from tests.hostile.world import World
from tests.support.core import no_internal_errors

LONGEST_TURN = 0.010
"""Seconds of CPU time. A turn is 2 ms; the rest is for its last step, and for slow machines."""
ATTEMPTS = 3
"""Another process may slow a turn down, but not the same one each time."""
DATAGRAM = 65_000
HERE: Address = ("192.0.2.1", 40_000)

Says = Callable[[int], bytes]
"""Returns the command of that number."""


def line(text: str) -> Says:
    """Say the same thing each time, with the number in place of {n}."""
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
    "Pull": line("Pull consumer 1000"),
    "Pull, unknown": line("Pull nothing"),
    "unknown": line("Nonsense {n}"),
    "unknown, long": lambda number: b"\xff" * 60_000 + b"\n",
    "empty": lambda number: b"\n" * 100,
    "escapes": lambda number: b"Ping " + b"%00" * 20_000 + b"\n",
    "options": lambda number: b"Subscribe a/b" + b" ack" * 10_000 + b"\n",
}


def runs() -> Iterator[tuple[str, bytes]]:
    """Yield each command in a run as long as the largest read."""
    for name, says in COMMANDS.items():
        data = b""
        number = 0
        parts = []
        size = 0
        while size < READ_SIZE:
            parts.append(says(number))
            size += len(parts[-1])
            number += 1
        data = b"".join(parts)
        yield name, data


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with no_internal_errors():
        world = World(tmp_path_factory.mktemp("world"))
        yield world
        world.close()

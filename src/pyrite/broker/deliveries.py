"""Steps of deliveries, as they are written down for sessions that outlive the broker's process.

Each step is 16 bytes: what happened, to how many messages, under which ids, and where they lie in the log.
Played from the first on, they lead to what is in flight and how far the session has come in each stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

_STEP = Struct("<BBHHHq")
SIZE = _STEP.size

SENT = 1
"""Messages went out; the session has come as far as the last of them."""
SENT_ASIDE = 2
"""Messages went out that do not tell how far the session has come."""
SENT_SHARED = 6
"""The same, dealt to the session as a member of a shared subscription."""
NOWHERE = 0
"""The stream of a message that no stream captured."""
RECEIVED = 3
"""The client has QoS 2 messages (PUBREC): only their ids are still taken."""
DONE = 4
"""Deliveries are over."""
POSITION = 5
"""The session has come as far as this."""


def step(kind: int, qos: int, first_id: int, count: int, stream: int, offset: int) -> bytes:
    """Write down one step, of messages with consecutive ids and offsets."""
    return _STEP.pack(kind, qos, first_id, count, stream, offset)


def steps(kind: int, ids: Sequence[int]) -> bytes:
    """Write down what happened to messages by their ids alone."""
    if not ids:
        return b""
    first, count = ids[0], len(ids)
    if count == 1 or tuple(ids) == tuple(range(first, first + count)):
        return _STEP.pack(kind, 0, first, count, 0, 0)
    return b"".join([_STEP.pack(kind, 0, one, 1, 0, 0) for one in ids])


class Sent(NamedTuple):
    """A message in flight: where it lies in the log."""

    stream: int
    offset: int
    qos: int
    shared: bool


def play(written: bytes) -> tuple[dict[int, int], dict[int, Sent | None]]:
    """Return where the steps lead: positions by stream; and by id what was sent, None if it was received."""
    positions: dict[int, int] = {}
    flights: dict[int, Sent | None] = {}
    for kind, qos, first_id, count, stream, offset in _STEP.iter_unpack(written):
        ids = range(first_id, first_id + count)
        if kind == POSITION:
            positions[stream] = offset
        elif kind in (SENT, SENT_ASIDE, SENT_SHARED):
            for number, message_id in enumerate(ids):
                flights.pop(message_id, None)
                flights[message_id] = Sent(stream, offset + number, qos, kind == SENT_SHARED)
            if kind == SENT:
                positions[stream] = max(positions.get(stream, 0), offset + count)
        elif kind == RECEIVED:
            flights.update(dict.fromkeys(ids, None))
        elif kind == DONE:
            for message_id in ids:
                flights.pop(message_id, None)
    return positions, flights

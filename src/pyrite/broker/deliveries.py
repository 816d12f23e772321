"""Delivery steps, as recorded durably for sessions that outlive the broker's process.

Each step is 16 bytes: what happened, to how many messages, under which ids, and their place in the log.
Played from the first on, steps yield the messages in flight and the session's position in each stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

_STEP = Struct("<BBHHHq")
SIZE = _STEP.size

SENT = 1
"""Messages were sent; the session's position is after the last of them."""
SENT_KEPT_CURSOR = 2
"""Messages were sent; the session's position did not change."""
SENT_SHARED = 6
"""Messages of a shared subscription were sent; the session's position did not change."""
NO_STREAM = 0
"""Number of the stream of messages that no stream captured."""
RECEIVED = 3
"""The client has received QoS 2 messages (PUBREC): only their ids are in use."""
DONE = 4
"""Deliveries are complete."""
POSITION = 5
"""The session's position."""


def step(kind: int, qos: int, first_id: int, count: int, stream: int, offset: int) -> bytes:
    """Encode one step, for messages with consecutive ids and offsets."""
    return _STEP.pack(kind, qos, first_id, count, stream, offset)


def steps(kind: int, ids: Sequence[int]) -> bytes:
    """Encode what happened to messages given by their ids alone."""
    if not ids:
        return b""
    first, count = ids[0], len(ids)
    if count == 1 or tuple(ids) == tuple(range(first, first + count)):
        return _STEP.pack(kind, 0, first, count, 0, 0)
    return b"".join([_STEP.pack(kind, 0, one, 1, 0, 0) for one in ids])


class Sent(NamedTuple):
    """A message in flight: its place in the log."""

    stream: int
    offset: int
    qos: int
    shared: bool


def play(written: bytes) -> tuple[dict[int, int], dict[int, Sent | None]]:
    """Return positions by stream; and by id the message in flight, None if the client has received it."""
    positions: dict[int, int] = {}
    flights: dict[int, Sent | None] = {}
    for kind, qos, first_id, count, stream, offset in _STEP.iter_unpack(written):
        ids = range(first_id, first_id + count)
        if kind == POSITION:
            positions[stream] = offset
        elif kind in (SENT, SENT_KEPT_CURSOR, SENT_SHARED):
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

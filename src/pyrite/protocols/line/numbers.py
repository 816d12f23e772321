"""Numbers of messages that are not in flight in the session: pulled messages, and the newest of a topic.

A session numbers its messages from 1 to 65,535. The connection numbers all others from 65,536 on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pyrite.broker.consumers import Consumer
from pyrite.broker.pending import Place

FIRST_NUMBER = 65_536
"""The first number that a connection gives."""
MAX_NUMBERED = 100_000
"""Messages with such numbers that may wait for their Ack, for each connection."""


class Pulled(NamedTuple):
    """A message that a consumer fetched."""

    consumer: Consumer
    place: Place


Numbered = Pulled | bytes | None
"""A pulled message, the topic of a newest message, or None for a message that only a datagram carries."""


class Numbers:
    """Messages that wait for an Ack, by the numbers that the connection gave them."""

    __slots__ = ("_waiting", "next")

    def __init__(self) -> None:
        self._waiting: dict[int, Numbered] = {}
        self.next = FIRST_NUMBER
        """The next number to be given."""

    def assign(self, message: Numbered) -> int:
        """Return a new number for a message."""
        number = self.next
        self.next += 1
        self._waiting[number] = message
        return number

    def pop(self, number: int) -> Numbered:
        """Return the message that waits under a number, which must exist, and remove it."""
        return self._waiting.pop(number)

    @property
    def in_use(self) -> Collection[int]:
        """The numbers whose Ack has not arrived."""
        return self._waiting.keys()

    def has_room_for(self, count: int) -> bool:
        """Return whether `count` more messages may wait."""
        return len(self._waiting) + count <= MAX_NUMBERED

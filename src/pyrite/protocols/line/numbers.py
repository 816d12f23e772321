"""Message numbers assigned by the connection: for pulled messages and for messages of `latest` subscriptions.

A session numbers its in-flight messages from 1 to 65,535. The connection numbers all others from 65,536 on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pyrite.broker.consumers import Consumer
from pyrite.broker.pending import Place

FIRST_NUMBER = 65_536
"""The first number that a connection assigns."""
MAX_NUMBERED = 100_000
"""Unacknowledged messages numbered by one connection."""


class Pulled(NamedTuple):
    """A message that a consumer fetched."""

    consumer: Consumer
    place: Place


Numbered = Pulled | bytes | None
"""A pulled message, the topic of a `latest` message, or None for a QoS 0 message over UDP."""


class Numbers:
    """Unacknowledged messages by the numbers that the connection assigned to them."""

    __slots__ = ("_waiting", "next")

    def __init__(self) -> None:
        self._waiting: dict[int, Numbered] = {}
        self.next = FIRST_NUMBER
        """The next number to be assigned."""

    def assign(self, message: Numbered) -> int:
        """Return a new number for a message."""
        number = self.next
        self.next += 1
        self._waiting[number] = message
        return number

    def pop(self, number: int) -> Numbered:
        """Remove and return the message with a number, which must be in use."""
        return self._waiting.pop(number)

    @property
    def in_use(self) -> Collection[int]:
        """The numbers whose Ack has not arrived."""
        return self._waiting.keys()

    def has_room_for(self, count: int) -> bool:
        """Return whether `count` more messages may wait."""
        return len(self._waiting) + count <= MAX_NUMBERED

"""Programs that read the log under a name, such as Spark's queries: how far each of them has come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyrite.broker.core import Broker
from pyrite.broker.journal import Stream

MAX_READERS = 1_000
MAX_READERS_PER_USER = 100
FORGET_AFTER = 3_600.0
"""Seconds after which a reader that says nothing more is forgotten."""


class LogReader(NamedTuple):
    """One named reader of one stream."""

    name: str
    user: str
    """The user's name; the address of a reader without one."""
    stream: Stream
    offset: int
    """The offset from which it continues."""
    at: float
    """When it said so, on the broker's clock."""

    @property
    def lag(self) -> int:
        """The messages of the stream that it has not read yet."""
        return max(0, self.stream.routed - self.offset)


class LogReaders:
    """The named readers of a broker's log. They are not durable: each tells its place again and again."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._readers: dict[tuple[str, str, str], LogReader] = {}

    def note(self, name: str, user: str, stream: Stream, offset: int) -> str:
        """Record the place of a reader; return why it cannot be recorded, or nothing."""
        key = (user, name, stream.name)
        if key not in self._readers:
            self._forget()
            if len(self._readers) >= MAX_READERS:
                return f"there are {MAX_READERS} named readers already"
            if sum(one.user == user for one in self._readers.values()) >= MAX_READERS_PER_USER:
                return f"user {user!r} has {MAX_READERS_PER_USER} named readers already"
        self._readers[key] = LogReader(name, user, stream, offset, self._broker.now)
        return ""

    def all(self) -> Iterator[LogReader]:
        """Yield the readers, by name."""
        self._forget()
        yield from sorted(self._readers.values(), key=lambda one: (one.name, one.user, one.stream.name))

    def _forget(self) -> None:
        oldest = self._broker.now - FORGET_AFTER
        self._readers = {key: one for key, one in self._readers.items() if one.at >= oldest}

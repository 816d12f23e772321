"""What this node's clients cause, on its way into the order: collected in groups, several of them in flight.

A group waits here until it comes back in the order. If the engine did not confirm one, or the order holds a
later one without it, all groups in flight are appended again, once the engine has answered for each: nodes
ignore what they have applied already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pyrite.broker.journal import Done, Stream
from pyrite.broker.message import Batch
from pyrite.cluster.group import ENVELOPE_SIZE, Contents, cluster_number, dump, dump_batch, seal
from pyrite.cluster.order import Appended, OrderedLog

MAX_IN_FLIGHT = 8
"""Groups that may be appended and not applied yet."""
MAX_GROUP_BYTES = 512 * 1024
"""Bytes of messages after which a group is appended."""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Bytes of messages that may wait here before the broker stops reading from clients."""


class Message(NamedTuple):
    """A batch on its way into the order."""

    batch: Batch
    stream: Stream | None
    time: int
    packet_ids: Sequence[int] | None
    done: Done | None
    epoch: int


class Call(NamedTuple):
    """A call to make on this node when the group is applied."""

    call: Callable[[], object]
    in_turn: bool
    """Whether it waits until the messages before it are acknowledged."""


Item = Message | Call | list[Any]
"""A list is an operation: its name and arguments."""


class _Part:
    """One part of a group that was appended."""

    __slots__ = ("data", "is_outstanding", "number", "sequence")

    def __init__(self, number: int, data: bytes) -> None:
        self.number = number
        self.data = data
        self.is_outstanding = False
        """Whether the engine has not said yet what became of it."""
        self.sequence = 0
        """Its place in the order, as the engine said; 0 if it is not known."""


class Outgoing:
    """A group that was appended, with what this node needs of it when it comes back."""

    __slots__ = ("contents", "items", "parts", "size", "waiters")

    def __init__(
        self, contents: Contents, items: list[Item], waiters: list[Callable[[], object]], size: int
    ) -> None:
        self.contents = contents
        self.items = items
        self.waiters = waiters
        """Called when the rows of the group are committed."""
        self.size = size
        self.parts: list[_Part] = []


class Outbound:
    """The groups of this node that are not applied yet."""

    def __init__(self, cluster: str, node: str) -> None:
        self._cluster = cluster_number(cluster)
        self._node = node
        self._order: OrderedLog | None = None
        self.incarnation = 0
        """The sequence of this process's start group; 0 before it was applied."""
        self._number = 0
        self._attempt = 0
        self._is_suspect = False
        """Whether a group that is in flight may be missing in the order."""
        self.waiting: deque[Item] = deque()
        """What is not in a group yet."""
        self.waiters: list[Callable[[], object]] = []
        """Waiters for state changes that are not in a group yet."""
        self.in_flight: deque[Outgoing] = deque()
        self.size = 0
        """Bytes of messages that wait or are in flight."""

    def begin(self, order: OrderedLog, incarnation: int) -> None:
        """Append as a new incarnation of this node."""
        self._order = order
        self.incarnation = incarnation
        self._number = 0

    @property
    def may_append(self) -> bool:
        """Whether another group may be in flight."""
        return self._order is not None and len(self.in_flight) < MAX_IN_FLIGHT

    def add(self, item: Item) -> None:
        """Put something into the next group."""
        self.waiting.append(item)
        if isinstance(item, Message):
            self.size += len(item.batch.data)

    def take(self) -> list[Item]:
        """Return the items of the next group: everything that waits, or as much as fits."""
        taken: list[Item] = []
        size = 0
        while self.waiting and size < MAX_GROUP_BYTES:
            item = self.waiting.popleft()
            taken.append(item)
            if isinstance(item, Message):
                size += len(item.batch.data)
        return taken

    def append(self, contents: Contents, items: list[Item], waiters: list[Callable[[], object]]) -> None:
        """Append a group of items, and of the rows that `contents` has already."""
        assert self._order is not None
        data: list[bytes] = []
        for item in items:
            if isinstance(item, Message):
                name = "" if item.stream is None else item.stream.name
                contents.items.append(dump_batch(item.batch, name, item.time, item.epoch))
                data.append(item.batch.data)
            elif isinstance(item, list):
                contents.items.append(item)
        whole = memoryview(dump(contents, data))
        group = Outgoing(contents, items, waiters, sum(map(len, data)))
        most = self._order.max_size - ENVELOPE_SIZE
        for at in range(0, len(whole), most):
            self._number += 1
            is_last = at + most >= len(whole)
            part = seal(
                self._cluster, self._node, self.incarnation, self._number, is_last, whole[at : at + most]
            )
            group.parts.append(_Part(self._number, part))
        self.in_flight.append(group)
        for one in group.parts:
            self._append(one)

    def _append(self, part: _Part) -> None:
        assert self._order is not None
        part.is_outstanding = True
        part.sequence = 0
        incarnation = self.incarnation

        def done(outcome: Appended) -> None:
            part.is_outstanding = False
            if incarnation != self.incarnation:
                return
            if outcome.sequence is None:
                self._is_suspect = True
            else:
                part.sequence = outcome.sequence
            self._append_again_if_due()

        self._order.append(part.data, f"{self._node}.{incarnation}.{part.number}.{self._attempt}", done)

    def passed(self, sequence: int) -> None:
        """Note that the order has come to a sequence, and that the first group in flight was not applied."""
        if self.in_flight and not self._is_suspect:
            missing = self.in_flight[0].parts[-1]
            if 0 < missing.sequence <= sequence:
                self._is_suspect = True
                self._append_again_if_due()

    def _append_again_if_due(self) -> None:
        parts = [part for group in self.in_flight for part in group.parts]
        if not self._is_suspect or any(part.is_outstanding for part in parts):
            return
        self._is_suspect = False
        self._attempt += 1
        for part in parts:
            self._append(part)

    def applied(self) -> Outgoing:
        """Return the group that has come back, which is the first that was appended."""
        group = self.in_flight.popleft()
        self.size -= group.size
        return group

    def abandon(self) -> list[Outgoing]:
        """Give up everything: this node was declared gone. Return what was in flight or waited."""
        groups = [*self.in_flight, Outgoing(Contents(), [*self.waiting], self.waiters, 0)]
        self.in_flight.clear()
        self.waiting.clear()
        self.waiters = []
        self.size = 0
        self._order = None
        self.incarnation = 0
        self._is_suspect = False
        return groups

    def last_in_flight(self) -> Outgoing | None:
        """Return the group that was appended last, unless it has come back."""
        return self.in_flight[-1] if self.in_flight else None

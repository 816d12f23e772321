"""The queue of one session: messages that wait for room in the in-flight window, oldest first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from pyrite.broker.figures import Figures
from pyrite.broker.message import Batch
from pyrite.broker.subscriptions import Subscription

Queued = tuple[Batch, int, Subscription]
"""A batch, the QoS with which it is sent, and the subscription that it is for."""


class DeliveryQueue:
    """Batches that wait, with the number of their messages and bytes."""

    __slots__ = ("_figures", "_sifting", "bytes", "entries", "messages")

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self.entries: deque[Queued] | None = None
        self.messages = 0
        self.bytes = 0
        self._sifting: tuple[deque[Queued], deque[Queued]] | None = None
        """While `sift` is at work: entries that stay, and entries that it has not reached."""

    def append(self, batch: Batch, qos: int, target: Subscription) -> None:
        if self.entries is None:
            self.entries = deque()
        self.entries.append((batch, qos, target))
        self._count(batch, 1)

    def _count(self, batch: Batch, sign: int) -> None:
        self.messages += sign * batch.count
        self.bytes += sign * len(batch.data)
        self._figures.messages_stored += sign * batch.count

    def remove_first(self, count: int) -> None:
        """Remove the first `count` messages of the first batch."""
        assert self.entries is not None
        batch, qos, target = self.entries.popleft()
        self._count(batch, -1)
        if count < batch.count:
            rest = batch.part(count, batch.count)
            self.entries.appendleft((rest, qos, target))
            self._count(rest, 1)

    def split_first(self) -> None:
        """Replace the first batch, a mixed one, by its single messages."""
        assert self.entries is not None
        batch, qos, target = self.entries.popleft()
        self.entries.extendleft([(single, qos, target) for single in reversed(batch.parts())])

    def sift(self, keep: Callable[[Batch, int, Subscription], Iterable[Queued]]) -> Iterator[None]:
        """Replace each entry by those that `keep` returns for it, one entry a step.

        The order stays. Entries that are appended meanwhile come last and are not sifted.
        """
        waiting = self._take()
        if not waiting:
            return
        kept: deque[Queued] = deque()
        self._sifting = kept, waiting
        try:
            while waiting:
                entry = waiting[0]
                stays = tuple(keep(*entry))
                self._count(entry[0], -1)
                for batch, _, _ in stays:
                    self._count(batch, 1)
                kept.extend(stays)
                waiting.popleft()
                yield
        finally:
            kept.extend(waiting)
            kept.extend(self.entries or ())
            self.entries = kept or None
            self._sifting = None

    def _take(self) -> deque[Queued] | None:
        entries, self.entries = self.entries, None
        return entries

    def __iter__(self) -> Iterator[Queued]:
        return chain(*(self._sifting or ()), self.entries or ())

    def clear(self) -> deque[Queued] | None:
        """Forget all entries and return them, so that the caller can free them in turns."""
        entries = self._take()
        self._figures.messages_stored -= self.messages
        self.messages = self.bytes = 0
        return entries

"""Fetches of consumers in a cluster: messages are handed out when the order has that they are.

Until then another node may claim the consumer. It would hand out the same messages, so this node must not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyrite.broker.fetching import Deliver, IsFull
from pyrite.broker.pending import Place
from pyrite.cluster.ledger import CONSUMER

if TYPE_CHECKING:
    from pyrite.broker.message import Batch
    from pyrite.cluster.journal import ClusterJournal

MAX_HELD_BYTES = 8 * 1024 * 1024
"""Bytes of messages from which on a fetch ends early."""
HANDED_OUT_TOGETHER = 64
"""Messages that are handed out in one turn."""


class HandingOut:
    """The messages of one fetch, until they may be handed out."""

    def __init__(
        self,
        journal: ClusterJournal,
        name: str,
        deliver: Deliver,
        done: Callable[[int], object],
        is_full: IsFull,
    ) -> None:
        self._journal = journal
        self._name = name
        self._deliver = deliver
        self._done = done
        self._is_full = is_full
        self._found: list[tuple[Place, Batch]] = []
        self._bytes = 0
        self._epoch = 0
        """The epoch under which the first message was found."""
        self._at = 0

    def found(self, place: Place, batch: Batch) -> None:
        """Keep a message that was found."""
        if not self._found:
            self._epoch = self._now()
        self._found.append((place, batch))
        self._bytes += len(batch.data)

    def is_full(self) -> bool:
        """Return whether the fetch must end early."""
        return self._bytes >= MAX_HELD_BYTES or self._is_full()

    def ended(self, count: int) -> None:
        """Hand out what was found as soon as it is in the order."""
        self._journal.after(self._safe)

    def _now(self) -> int:
        return self._journal.ownership.epoch(CONSUMER, self._name)

    def _safe(self) -> None:
        if self._found and (not self._epoch or self._epoch != self._now()):
            self._found = []  # another node has claimed the consumer, and hands them out
        self.go_on()

    def go_on(self) -> None:
        """Hand out some messages."""
        for place, batch in self._found[self._at : self._at + HANDED_OUT_TOGETHER]:
            self._deliver(place, batch)
        self._at += HANDED_OUT_TOGETHER
        if self._at < len(self._found):
            self._journal.broker.turns.add(self)
        else:
            self._done(len(self._found))

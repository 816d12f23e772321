"""Presence: nodes whose lease has expired are declared gone, and what they leave behind is cleared up.

Every node sees the same owners and wills, so the first node by name of those that are here clears up for all.
All of its operations name what they mean by its epoch: one that comes too late, or twice, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from pyrite.broker.session import NEVER
from pyrite.cluster.ledger import SESSION, Owner

if TYPE_CHECKING:
    from pyrite.cluster.journal import ClusterJournal

MISSED_LOOKS = 3
"""Looks, one a second, at which a node has no lease before it is declared gone."""
LOOKED_AT_TOGETHER = 2_000
"""Owners that are looked at at a time."""


class Presence:
    """Watches the other nodes, for one node."""

    def __init__(self, journal: ClusterJournal) -> None:
        self._journal = journal
        self._missed: dict[tuple[str, int], int] = {}
        """By node and incarnation: at how many looks it had no lease."""
        self._to_look_at: Iterator[tuple[tuple[str, str], Owner]] = iter(())

    def look(self) -> None:
        """Declare nodes gone that have no lease, and clear up, once a second."""
        journal = self._journal
        if not journal.has_quorum:
            self._missed.clear()
            return
        assert journal.order is not None
        leases, authors = journal.order.leases, journal.ledger.authors
        now = int(journal.wall() * 1e6)
        missed: dict[tuple[str, int], int] = {}
        for name, author in authors.items():
            if author.is_here and name not in leases and name != journal.node:
                key = name, author.incarnation
                missed[key] = self._missed.get(key, 0) + 1
                if missed[key] == MISSED_LOOKS:
                    journal.do(["gone", name, author.incarnation, now])
        self._missed = missed
        if journal.node == min((name for name, one in authors.items() if one.is_here), default=""):
            journal.wills.publish_of_gone(now)
            self._clear_up(now)

    def _clear_up(self, now: int) -> None:
        """Release sessions of nodes that are gone, unless they last longer."""
        ledger = self._journal.ledger
        count = 0
        for (kind, name), owner in islice(self._to_look_at, LOOKED_AT_TOGETHER):
            count += 1
            current = ledger.owners.get((kind, name)) is owner
            if kind == SESSION and current and not ledger.is_current(owner) and self._has_ended(owner, now):
                self._journal.do(["release", kind, name, owner.epoch])
        if not count:
            self._to_look_at = iter(list(ledger.owners.items()))

    def _has_ended(self, owner: Owner, now: int) -> bool:
        """Return whether a session of a node that is gone has ended, or expired."""
        if not owner.lasts:
            return True
        if owner.expiry == NEVER:
            return False
        expires_at = owner.expires_at
        if expires_at is None:  # its client was connected
            expires_at = self._journal.ledger.authors[owner.node].began / 1e6 + owner.expiry
        return expires_at * 1e6 <= now

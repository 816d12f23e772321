"""The ledger: how far this node has applied the order, which nodes take part, and which node owns what.

It changes by applying groups alone, so after the same group it is the same on every node. It is committed
with the state that the groups have led to.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

from pyrite.cluster.group import Envelope
from pyrite.journal import state as sql
from pyrite.journal.state import Change

POSITION = "position"
"""Kind of the row that says how far this node has applied the order; rows of other kinds name owners."""
SESSION = "session"
CONSUMER = "consumer"
MAX_HASHES = 65_536
"""Groups of which the hash is remembered, to compare it with that of other nodes."""


class Author:
    """One node, as the author of groups."""

    __slots__ = ("began", "first_part", "format", "incarnation", "is_here", "last", "nonce", "parts")

    def __init__(self, incarnation: int, last: int, nonce: str, form: int, is_here: bool, began: int) -> None:
        self.incarnation = incarnation
        """The sequence of its start group: a restarted node has another one."""
        self.last = last
        """The number of the last part of the last group that was applied."""
        self.nonce = nonce
        """What its process made up, so that it knows its own start group."""
        self.format = form
        """The newest format that it reads."""
        self.is_here = is_here
        """Whether it has not been declared gone."""
        self.began = began
        """When it started or was declared gone, in microseconds since 1970."""
        self.parts: list[Envelope] = []
        """The first parts of a group of which the last has not come yet."""
        self.first_part = 0
        """The sequence of the first of them."""

    def dump(self) -> list[Any]:
        """Return what is committed."""
        return [self.incarnation, self.last, self.nonce, self.format, self.is_here, self.began]


class Owner(NamedTuple):
    """The node that may change a session or consumer."""

    node: str
    epoch: int
    """The sequence of the claim: no other claim has the same."""
    lasts: bool = False
    """Whether the session outlives its node."""
    expiry: int = 0
    """Seconds that the session outlives its connection."""
    expires_at: float | None = None
    """When the session ends, in seconds since 1970; None while its client is connected."""


class Ledger:
    """What the groups that were applied have led to, besides messages and rows."""

    def __init__(self) -> None:
        self.sequence = 0
        """The sequence of the last group that was applied or ignored."""
        self.hash = 0
        """The hash of all groups that were applied."""
        self.authors: dict[str, Author] = {}
        self.owners: dict[tuple[str, str], Owner] = {}
        """By kind and name."""
        self._hashes: deque[tuple[int, int]] = deque(maxlen=MAX_HASHES)
        self._hash_at: dict[int, int] = {}

    # The order

    def is_next(self, envelope: Envelope) -> bool:
        """Return whether a part continues what its author has appended; every node ignores other parts."""
        author = self.authors.get(envelope.author)
        if author is None or not author.is_here or author.incarnation != envelope.incarnation:
            return False
        return envelope.number == author.last + len(author.parts) + 1

    def add_part(self, sequence: int, envelope: Envelope) -> bytes | None:
        """Add a part; return the contents of its group if it is the last."""
        author = self.authors[envelope.author]
        if not author.parts:
            author.first_part = sequence
        author.parts.append(envelope)
        if not envelope.is_last:
            return None
        parts, author.parts = author.parts, []
        author.last = envelope.number
        return b"".join([one.contents for one in parts]) if len(parts) > 1 else envelope.contents

    def applied(self, sequence: int, envelope: Envelope, ends: Iterable[int]) -> None:
        """Add a group to the hash of everything that was applied; `ends` are the ends of the streams then."""
        values = [self.hash, sequence, envelope.checksum, *ends]
        self.hash = xxh3_64_intdigest(b"".join([value.to_bytes(8, "little") for value in values]))
        if len(self._hashes) == MAX_HASHES:
            del self._hash_at[self._hashes[0][0]]
        self._hashes.append((sequence, self.hash))
        self._hash_at[sequence] = self.hash

    def hash_after(self, sequence: int) -> int | None:
        """Return the hash of what was applied up to a group; None if it is not remembered."""
        return self._hash_at.get(sequence)

    @property
    def restart_after(self) -> int:
        """The sequence after which a restarted node must read: the first parts of groups are not kept."""
        firsts = [one.first_part - 1 for one in self.authors.values() if one.parts]
        return min([self.sequence, *firsts])

    # Owners

    def owner(self, kind: str, name: str) -> Owner | None:
        """Return the owner; None if there is none, or if its node is gone or has restarted."""
        owner = self.owners.get((kind, name))
        return owner if owner is not None and self.is_current(owner) else None

    def is_current(self, owner: Owner) -> bool:
        """Return whether a node still is what it was when it became an owner."""
        author = self.authors.get(owner.node)
        return author is not None and author.is_here and author.incarnation < owner.epoch

    # The database

    def save(self, ends: dict[str, int], time: int) -> Change:
        """Return the row that says how far this node has applied the order."""
        value = {
            "sequence": self.sequence,
            "after": self.restart_after,
            "hash": self.hash,
            "time": time,
            "ends": ends,
            "authors": {name: author.dump() for name, author in self.authors.items()},
        }
        return sql.SAVE_CLUSTER, (POSITION, "", json.dumps(value))

    def load(self, rows: Iterable[tuple[str, str, str]]) -> dict[str, Any]:
        """Load what was committed; return the row that `save` made, or an empty dict."""
        position: dict[str, Any] = {}
        for kind, name, value in rows:
            if kind == POSITION:
                position = json.loads(value)
            elif kind in (SESSION, CONSUMER):
                self.owners[kind, name] = Owner(*json.loads(value))
        if position:
            self.sequence, self.hash = position["sequence"], position["hash"]
            self.authors = {name: Author(*values) for name, values in position["authors"].items()}
            self._hash_at[self.sequence] = self.hash
            self._hashes.append((self.sequence, self.hash))
        return position

    def set_owner(self, kind: str, name: str, owner: Owner | None, note: Callable[[Change], object]) -> None:
        """Change an owner, and note the change of its row."""
        if owner is None:
            self.owners.pop((kind, name), None)
            note((sql.DROP_CLUSTER, (kind, name)))
        else:
            self.owners[kind, name] = owner
            note((sql.SAVE_CLUSTER, (kind, name, json.dumps(owner))))

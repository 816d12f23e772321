"""Wills in a cluster: every node keeps them, so that they are published when their node is gone.

A will is published by an operation that names it. Whichever node sends it, the first one to be applied
publishes the will on all nodes, and the others find none.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pyrite.broker.access import Credentials
from pyrite.cluster.group import dump_batch
from pyrite.journal import state as sql

if TYPE_CHECKING:
    from pyrite.broker.session import Session
    from pyrite.cluster.journal import ClusterJournal

WILL = "will"
"""Kind of the rows of wills."""


class KeptWill(NamedTuple):
    """A will as every node keeps it."""

    node: str
    """The node that the client was connected to."""
    client_id: str
    epoch: int
    """The epoch under which that node owned the session."""
    delay: int
    """Seconds after the loss of the connection, at most until the session ends."""
    author: list[Any]
    """User name, user groups and address of the client, whose rights are checked again."""
    head: list[Any]
    data: bytes

    @property
    def name(self) -> str:
        """The name of its row."""
        return f"{self.epoch}/{self.client_id}"

    def credentials(self) -> Credentials:
        """Return the author as the access rules know it."""
        username, groups, address = self.author
        who = Credentials(self.client_id, username, None, address)
        who.groups = frozenset(groups)
        return who


class Wills:
    """The wills of all clients of the cluster."""

    def __init__(self, journal: ClusterJournal) -> None:
        self._journal = journal
        self.kept: dict[tuple[str, int], KeptWill] = {}
        """By client identifier and epoch."""
        self._saved: dict[str, int] = {}
        """Epochs of the wills of this node's clients."""

    def load(self, rows: list[tuple[str, str, str]]) -> None:
        """Load the wills that were committed."""
        for kind, _, value in rows:
            if kind == WILL:
                will = KeptWill(*msgspec.msgpack.decode(b64decode(value)))
                self.kept[will.client_id, will.epoch] = will

    # What this node's clients cause

    def save(self, session: Session) -> None:
        """Send a session's will to all nodes, or have them drop it if it has none."""
        journal, client_id, will = self._journal, session.client_id, session.will
        epoch = journal.ownership.epoch_of_session(client_id)
        if will is not None and epoch > 0:
            who = will.author
            stream = journal.stream_for(will.batch.topic)
            batch = will.batch.owned_by(session.account) if will.batch.retain else will.batch
            head = dump_batch(batch, "" if stream is None else stream.name, 0, 0)
            author = [who.username, sorted(who.groups), who.address]
            self._saved[client_id] = epoch
            delay = min(will.delay, session.expiry)
            journal.do(["set-will", client_id, epoch, delay, author, head, will.batch.data])
        elif client_id in self._saved:
            journal.do(["drop-will", client_id, self._saved.pop(client_id)])

    def publish(self, session: Session) -> None:
        """Have the will of a session published."""
        epoch = self._saved.pop(session.client_id, None)
        if epoch is not None:
            self._publish(session.client_id, epoch)

    def _publish(self, client_id: str, epoch: int) -> None:
        self._journal.do(["publish-will", client_id, epoch, int(self._journal.wall() * 1e6)])

    def publish_of_gone(self, now: int) -> None:
        """Have the wills published whose nodes are gone, and which are due."""
        journal, authors = self._journal, self._journal.ledger.authors
        for will in list(self.kept.values()):
            author = authors.get(will.node)
            if author is None or (author.is_here and author.incarnation < will.epoch):
                continue
            if author.began + will.delay * 1_000_000 > now:
                continue
            if journal.broker.policy.has_right("publish", will.credentials(), will.head[4]):
                self._publish(will.client_id, will.epoch)
            else:
                journal.do(["drop-will", will.client_id, will.epoch])

    # Operations

    def set(self, will: KeptWill) -> None:
        """Apply that a client has a will."""
        self.kept[will.client_id, will.epoch] = will
        value = b64encode(msgspec.msgpack.encode(list(will))).decode()
        self._journal.rows.note((sql.SAVE_CLUSTER, (WILL, will.name, value)))

    def take(self, client_id: str, epoch: int) -> KeptWill | None:
        """Apply that a will is published or dropped; return it if that was not so before."""
        will = self.kept.pop((client_id, epoch), None)
        if will is not None:
            self._journal.rows.note((sql.DROP_CLUSTER, (WILL, will.name)))
        return will

"""State changes in a cluster: those that this node's clients cause go into its groups, to all nodes.

Rows of retained messages are not sent: every node derives them from the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyrite.broker.message import Batch
from pyrite.cluster.ledger import CONSUMER, SESSION
from pyrite.journal import state as sql
from pyrite.journal.changes import Changes
from pyrite.journal.state import Change
from pyrite.journal.state_changes import RecordedChanges

if TYPE_CHECKING:
    from pyrite.broker.accounts import Account
    from pyrite.broker.session import Session

STATEMENTS = (
    sql.SAVE_SESSION,
    sql.DROP_SESSION,
    sql.SAVE_SUBSCRIPTION,
    sql.DROP_SUBSCRIPTION,
    sql.DROP_SUBSCRIPTIONS,
    sql.SAVE_INCOMING,
    sql.DROP_INCOMING,
    sql.ADD_STEPS,
    sql.DROP_STEPS,
    sql.SAVE_CONSUMER,
    sql.DROP_CONSUMER,
    sql.SAVE_PENDING,
    sql.DROP_PENDING,
    sql.DROP_ALL_PENDING,
    sql.SAVE_TOPIC,
    sql.DROP_TOPIC,
    sql.SAVE_SINK,
    sql.DROP_SINK,
    sql.SAVE_ACCOUNT,
    sql.DROP_ACCOUNT,
)
"""Groups name a statement by its place here, so places never change."""
CODES = {statement: code for code, statement in enumerate(STATEMENTS)}

_OWNED = {
    sql.SAVE_SESSION: (SESSION, 0),
    sql.DROP_SESSION: (SESSION, 0),
    sql.SAVE_SUBSCRIPTION: (SESSION, 0),
    sql.DROP_SUBSCRIPTION: (SESSION, 0),
    sql.DROP_SUBSCRIPTIONS: (SESSION, 0),
    sql.SAVE_INCOMING: (SESSION, 0),
    sql.DROP_INCOMING: (SESSION, 0),
    sql.ADD_STEPS: (SESSION, 0),
    sql.DROP_STEPS: (SESSION, 0),
    sql.SAVE_ACCOUNT: (SESSION, 1),
    sql.DROP_ACCOUNT: (SESSION, 1),
    sql.SAVE_CONSUMER: (CONSUMER, 0),
    sql.DROP_CONSUMER: (CONSUMER, 0),
    sql.SAVE_PENDING: (CONSUMER, 0),
    sql.DROP_PENDING: (CONSUMER, 0),
    sql.DROP_ALL_PENDING: (CONSUMER, 0),
}
"""By statement: the kind of owner of its rows, and the place of the owner's name in its values."""


def owner_of(change: Change) -> tuple[str, str] | None:
    """Return kind and name of the session or consumer that a row belongs to, if it belongs to one."""
    statement, values = change
    owned = _OWNED.get(statement)
    return None if owned is None else (owned[0], values[owned[1]])


class ClusterChanges(RecordedChanges):
    """State changes that this node's clients cause, until they go into a group."""

    def __init__(
        self,
        wall: Callable[[], float],
        on_new_row: Callable[[], object],
        rows: RecordedChanges,
        do: Callable[[list[Any]], object],
        ended: Callable[[str], object],
        save_will: Callable[[Session], object],
        owns: Callable[[str, str], object],
    ) -> None:
        super().__init__(wall, on_new_row)
        self._owns = owns
        """Returns whether this node owns a session or consumer, by kind and name."""
        self._ended = ended
        """Called with the client identifier of a session that has ended."""
        self._save_will = save_will
        self._rows = rows
        """State changes of the groups that were applied."""
        self._do = do
        """Puts an operation into the next group."""

    def note(self, change: Change) -> None:
        """Record a change, unless its session or consumer belongs to another node by now.

        A session that has moved is forgotten here like one that ends. If it soon comes back, its rows must
        still be there.
        """
        key = owner_of(change)
        if key is None or self._owns(*key):
            super().note(change)

    def save_stored(self, account: Account) -> None:
        """Record on this node what was stored through it."""
        self._rows.save_stored(account)

    def save_will(self, session: Session) -> None:
        """Record a session's will, or that it has none any more."""
        self._save_will(session)

    def release_session(self, session: Session) -> None:
        """Have the session released, so that this node owns it no longer."""
        self._ended(session.client_id)

    def save_retained(self, batch: Batch) -> None:
        """Do nothing: the row was changed when the group was applied."""

    def drop_retained(self, topic: bytes) -> None:
        """Do nothing: the row was changed when the group was applied, or holds an expired message."""

    def delete_retained(self, topic: bytes) -> None:
        """Have every node delete the retained message of a topic."""
        self._do(["unretain", topic])


class AppliedRows(RecordedChanges):
    """State changes of the groups that were applied, until they are committed together with the ledger."""

    def __init__(
        self, wall: Callable[[], float], on_new_row: Callable[[], object], ledger_row: Callable[[], Change]
    ) -> None:
        super().__init__(wall, on_new_row)
        self._ledger_row = ledger_row

    def take(self, unsafe: Mapping[str | None, set[int]]) -> Changes:
        """Return everything to be committed now, with how far the order was applied by that."""
        changes = super().take(unsafe)
        changes.add(self._ledger_row())
        return changes

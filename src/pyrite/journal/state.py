"""The state in SQLite (WAL mode, synchronous = FULL).

It holds sessions, subscriptions, delivery steps, retained messages, shared groups, consumers with their
pending messages, created topics, sinks, and accounts; in a cluster, how far it has applied the order of
groups, and which node owns what. For each stream it holds the offset up to which it
includes the effects of messages (`applied`): retained messages and ids of QoS 2 messages. Later effects are
found in the log at the start.
"""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from pyrite.journal.salvage import salvage
from pyrite.journal.tables import HEADER, PAGE, SCHEMA, fault, is_proven, proof, text, values_of
from pyrite.journal.wal import log_of, read_log
from pyrite.storage.files import Files
from pyrite.storage.folder import FolderError

Change = tuple[str, tuple[Any, ...]]
"""A statement and its values."""

SAVE_STREAM = "INSERT OR REPLACE INTO streams VALUES (?, ?, ?, ?)"
SAVE_SESSION = "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?)"
DROP_SESSION = "DELETE FROM sessions WHERE client_id = ?"
DROP_SUBSCRIPTIONS = "DELETE FROM subscriptions WHERE client_id = ?"
SAVE_SUBSCRIPTION = "INSERT OR REPLACE INTO subscriptions VALUES (?, ?, ?, ?)"
DROP_SUBSCRIPTION = "DELETE FROM subscriptions WHERE client_id = ? AND filter = ?"
SAVE_INCOMING = "INSERT OR REPLACE INTO incoming VALUES (?, ?, ?)"
DROP_INCOMING = "DELETE FROM incoming WHERE client_id = ?"
ADD_STEPS = "INSERT INTO deliveries (client_id, steps, proof) VALUES (?, ?, ?)"
DROP_STEPS = "DELETE FROM deliveries WHERE client_id = ?"
SAVE_RETAINED = "INSERT OR REPLACE INTO retained VALUES (?, ?, ?, ?)"
DROP_RETAINED = "DELETE FROM retained WHERE topic = ?"
SAVE_GROUP = "INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?)"
DROP_GROUP = "DELETE FROM groups WHERE name = ? AND filter = ?"
SAVE_CONSUMER = "INSERT OR REPLACE INTO consumers VALUES (?, ?, ?)"
DROP_CONSUMER = "DELETE FROM consumers WHERE name = ?"
SAVE_PENDING = "INSERT OR REPLACE INTO pending VALUES (?, ?, ?, ?)"
DROP_PENDING = "DELETE FROM pending WHERE name = ? AND block = ?"
DROP_ALL_PENDING = "DELETE FROM pending WHERE name = ?"
SAVE_TOPIC = "INSERT OR REPLACE INTO topics VALUES (?, ?)"
DROP_TOPIC = "DELETE FROM topics WHERE topic = ?"
SAVE_SINK = "INSERT OR REPLACE INTO sinks VALUES (?, ?, ?)"
DROP_SINK = "DELETE FROM sinks WHERE name = ?"
SAVE_ACCOUNT = "INSERT OR REPLACE INTO accounts VALUES (?, ?, ?, ?)"
DROP_ACCOUNT = "DELETE FROM accounts WHERE kind = ? AND name = ?"
SAVE_CLUSTER = "INSERT OR REPLACE INTO cluster VALUES (?, ?, ?, ?)"
DROP_CLUSTER = "DELETE FROM cluster WHERE kind = ? AND name = ?"

_ROWS_PER_STATEMENT = (128, 16, 1)
"""How many rows one statement changes: few different numbers, so that statements stay prepared."""


class Kept(NamedTuple):
    """Everything that the state holds."""

    sessions: list[tuple[Any, ...]]
    subscriptions: list[tuple[str, bytes, dict[str, Any]]]
    incoming: list[tuple[str, array[int]]]
    deliveries: Iterable[tuple[Any, ...]]
    retained: Iterable[tuple[bytes, dict[str, Any], bytes]]
    groups: list[tuple[str, bytes, dict[str, Any]]]
    consumers: list[tuple[str, dict[str, Any]]]
    pending: list[tuple[str, bytes, bytes]]
    topics: list[bytes]
    sinks: list[tuple[str, dict[str, Any]]]
    accounts: list[tuple[str, str, str]]
    """Kind, name and value: the account of a session, or the stored bytes of an account (restoring.py)."""


class KeptSession(NamedTuple):
    """Everything that the state holds of one session."""

    session: tuple[str, int, float | None] | None
    """Client identifier, expiry, and when it expires; None if there is no such session."""
    owner: str | None
    """The account that it counts for."""
    steps: bytes
    subscriptions: list[tuple[bytes, dict[str, Any]]]
    incoming: Sequence[int]


class State:
    """The database. If it is damaged, it is salvaged; if it is locked or unwritable, opening it fails.

    Opened in the thread that starts the broker, then used by the committing thread.
    """

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self._path = path
        self._files = files or Files()
        self.damages: list[str] = []
        """The damage that was found, in words."""
        log = read_log(path)
        with _usable(path):
            reason = _fault(path)
            if reason is not None:
                self.damages.append(salvage(path, reason, self._files))
            if log.damaged_at >= 0:
                name = log_of(path).name
                self.damages.append(f"{name}: damaged; the last changes of sessions may be lost")
            self._database = _open(path, self._files)
        self._cursor = self._database.cursor()
        """Reused, because a connection keeps references to hundreds of past cursors."""

    def _rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows whose checksum is right; report and remove the others."""
        with _usable(self._path):
            rows = self._database.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608
        good = [row for row in rows if is_proven(table, row)]
        if len(good) < len(rows):
            for row in rows:
                if not is_proven(table, row):
                    name = values_of(table, row)[0]
                    self.damages.append(f"{self._path.name}: a row of {table} is damaged: {name!r}")
            self._replace(table, good)
        yield from (values_of(table, row) for row in good)

    def _replace(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        """Replace all rows of a table."""
        places = ", ".join("?" * len(rows[0])) if rows else ""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute(f"DELETE FROM {table}")  # noqa: S608
            if rows:
                self._database.executemany(f"INSERT INTO {table} VALUES ({places})", rows)  # noqa: S608
            self._files.commit(self._path, self._cursor)
        except (sqlite3.Error, OSError):  # then they are found again at the next start
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")

    def streams(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return the permanent number of each stream, and up to where it was applied; -1 if that row is
        damaged.
        """
        with _usable(self._path):
            return self._streams(names)

    def _streams(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        raw = self._database.execute("SELECT number, name FROM streams").fetchall()
        before = len(self.damages)
        known = {name: (number, applied) for number, name, applied in self._rows("streams")}
        unknown = -1 if len(self.damages) > before else 0
        for number, name in raw:  # the number of a damaged row may still be right
            if name in names and name not in known:
                known[name] = (number, -1)
                self.commit([(SAVE_STREAM, (number, name, -1))])
        taken = [0, *(number for number, _ in raw)]
        for name in names:
            if name not in known:
                number = max(taken) + 1
                taken.append(number)
                known[name] = (number, unknown)
                self.commit([(SAVE_STREAM, (number, name, unknown))])
        return known

    def load(self) -> Kept:
        """Return everything."""
        return Kept(
            list(self._rows("sessions")),
            [(client, of, json.loads(options)) for client, of, options in self._rows("subscriptions")],
            [(client, array("H", ids)) for client, ids in self._rows("incoming")],
            self._rows("deliveries"),
            ((topic, json.loads(message), payload) for topic, message, payload in self._rows("retained")),
            [(name, of, json.loads(state)) for name, of, state in self._rows("groups")],
            [(name, json.loads(state)) for name, state in self._rows("consumers")],
            list(self._rows("pending")),
            [topic for (topic,) in self._rows("topics")],
            [(name, json.loads(state)) for name, state in self._rows("sinks")],
            list(self._rows("accounts")),
        )

    def session(self, client_id: str) -> KeptSession:
        """Return everything about one session. Used by the committing thread."""

        def rows(table: str, condition: str, *values: str) -> list[tuple[Any, ...]]:
            question = f"SELECT * FROM {table} WHERE {condition}"  # noqa: S608
            found = self._database.execute(question, values).fetchall()
            return [values_of(table, row) for row in found if is_proven(table, row)]

        of = "client_id = ?"
        sessions = rows("sessions", of, client_id)
        owners = rows("accounts", "kind = 'owner' AND name = ?", client_id)
        incoming = rows("incoming", of, client_id)
        return KeptSession(
            sessions[0] if sessions else None,
            owners[0][2] if owners else None,
            b"".join([steps for _, steps in rows("deliveries", of + " ORDER BY number", client_id)]),
            [(key, json.loads(options)) for _, key, options in rows("subscriptions", of, client_id)],
            array("H", incoming[0][1]) if incoming else (),
        )

    def consumer(self, name: str) -> tuple[dict[str, Any] | None, list[tuple[bytes, bytes]]]:
        """Return the state of a consumer, None if there is none, and the blocks of what is pending.

        Used by the committing thread.
        """

        def rows(table: str) -> list[tuple[Any, ...]]:
            found = self._database.execute(f"SELECT * FROM {table} WHERE name = ?", (name,))  # noqa: S608
            return [values_of(table, row) for row in found.fetchall() if is_proven(table, row)]

        states = rows("consumers")
        return (
            json.loads(states[0][1]) if states else None,
            [(block, bits) for _, block, bits in rows("pending")],
        )

    def copy_to(self, path: Path) -> None:
        """Write a copy to a new file, between two commits."""
        self._database.execute("VACUUM INTO ?", (str(path),))

    def cluster(self) -> list[tuple[str, str, str]]:
        """Return kind, name and value of what a node of a cluster keeps."""
        return list(self._rows("cluster"))

    def commit(self, changes: Sequence[Change]) -> None:
        """Commit changes in one transaction, and return when they are durable."""
        self._cursor.execute("BEGIN IMMEDIATE")
        try:
            at = 0
            while at < len(changes):
                statement = changes[at][0]
                stop = at + 1
                while stop < len(changes) and changes[stop][0] is statement:
                    stop += 1
                rows = [values for _, values in changes[at:stop]]
                if statement.startswith("INSERT"):
                    rows = [(*values, proof(values)) for values in rows]
                self._execute(statement, rows)
                at = stop
            self._files.commit(self._path, self._cursor)
        except (sqlite3.Error, OSError):
            if self._database.in_transaction:
                self._cursor.execute("ROLLBACK")
            raise

    def finds(self, change: Change) -> bool:
        """Return whether there are rows that a deletion would delete."""
        statement, values = change
        question = statement.replace("DELETE", "SELECT 1", 1) + " LIMIT 1"
        return self._database.execute(question, values).fetchone() is not None

    def _execute(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        """Execute one statement for many rows."""
        at = 0
        for size in _ROWS_PER_STATEMENT:
            while len(rows) - at >= size:
                together = chain.from_iterable(rows[at : at + size])
                self._cursor.execute(_for_many(statement, size), tuple(together))
                at += size

    def close(self) -> None:
        """Checkpoint and close the database."""
        self._database.close()


@cache
def _for_many(statement: str, number: int) -> str:
    """Return a statement that does for `number` rows what `statement` does for one.

    SQLite releases the interpreter lock at every statement, and beside a busy event loop reacquiring it takes
    long.
    """
    if number == 1:
        return statement
    word, joint = (" VALUES ", ", ") if statement.startswith("INSERT") else (" WHERE ", " OR ")
    head, _, one = statement.partition(word)
    return head + word + joint.join([one] * number)


_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_REMEDIES = {
    sqlite3.SQLITE_FULL: "make room on its disk",
    sqlite3.SQLITE_IOERR: "see that it is a file, and that its disk works and has room",
    sqlite3.SQLITE_BUSY: "end the program that has it open",
    sqlite3.SQLITE_LOCKED: "end the program that has it open",
}


def _fault(path: Path) -> str | None:
    """Return what is wrong with the structure of a database; None if nothing is.

    It is opened read-only, so nothing changes and the write-ahead log stays.
    """
    if not path.exists():
        return None
    try:
        with path.open("rb") as file:
            header = file.read(HEADER)
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.text_factory = text
            return fault(header, database)
    except sqlite3.DatabaseError as error:
        if _primary_code(error) in _DAMAGED:
            return str(error)
        raise


def _open(path: Path, files: Files) -> sqlite3.Connection:
    files.close(files.open(path))  # SQLite gives the files beside it the same mode
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        database.text_factory = text
        database.execute(f"PRAGMA page_size = {PAGE}")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA cell_size_check = ON")
        database.executescript(SCHEMA)
        # Makes the next commit restart the write-ahead log, so that it holds nothing older.
        database.execute("PRAGMA wal_checkpoint(PASSIVE)")
    except sqlite3.Error:
        database.close()
        raise
    return database


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Raise FolderError, with a remedy, if the database cannot be used at present."""
    try:
        yield
    except sqlite3.Error as error:
        remedy = _REMEDIES.get(_primary_code(error), "see that it is a file that may be read and written")
        raise FolderError(
            f"{path}: the state of sessions cannot be used: {error}; it is left as it is: "
            f"{remedy}, and start again"
        ) from None


def _primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF

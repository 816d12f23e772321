"""The broker's state beside the log: SQLite in WAL mode, written in the same group commit.

Sessions, subscriptions, steps of deliveries, retained messages, shared subscriptions, consumers, created
topics and sinks. Up to which offset of each stream the state includes what messages did to it (retained
messages, ids of QoS 2 messages) is noted with it (`applied`); what came later is found in the log when the
broker starts.
"""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from struct import pack, unpack
from typing import Any, NamedTuple

from xxhash import xxh3_64

Change = tuple[str, tuple[Any, ...]]
"""A statement and its values."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS streams (number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL,
    applied INTEGER NOT NULL, proof INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS sessions (client_id TEXT PRIMARY KEY, expiry INTEGER NOT NULL, expires_at REAL,
    proof INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS subscriptions (client_id TEXT NOT NULL, filter BLOB NOT NULL,
    options TEXT NOT NULL, proof INTEGER NOT NULL, PRIMARY KEY (client_id, filter)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS incoming (client_id TEXT PRIMARY KEY, ids BLOB NOT NULL, proof INTEGER NOT NULL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS deliveries (number INTEGER PRIMARY KEY, client_id TEXT NOT NULL,
    steps BLOB NOT NULL, proof INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS deliveries_of ON deliveries (client_id);
CREATE TABLE IF NOT EXISTS retained (topic BLOB PRIMARY KEY, message TEXT NOT NULL, payload BLOB NOT NULL,
    proof INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS groups (name TEXT NOT NULL, filter BLOB NOT NULL, state TEXT NOT NULL,
    proof INTEGER NOT NULL, PRIMARY KEY (name, filter)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS consumers (name TEXT PRIMARY KEY, state TEXT NOT NULL, proof INTEGER NOT NULL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS topics (topic BLOB PRIMARY KEY, proof INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sinks (name TEXT PRIMARY KEY, state TEXT NOT NULL, proof INTEGER NOT NULL)
    WITHOUT ROWID;
"""
# SQLite does not notice a changed byte in a value: every row ends with a checksum of the others.

TABLES = (
    "streams",
    "sessions",
    "subscriptions",
    "incoming",
    "deliveries",
    "retained",
    "groups",
    "consumers",
    "topics",
    "sinks",
)
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
SAVE_TOPIC = "INSERT OR REPLACE INTO topics VALUES (?, ?)"
DROP_TOPIC = "DELETE FROM topics WHERE topic = ?"
SAVE_SINK = "INSERT OR REPLACE INTO sinks VALUES (?, ?, ?)"
DROP_SINK = "DELETE FROM sinks WHERE name = ?"

_TOGETHER = (128, 16, 1)
"""How many rows are changed by one statement: few numbers, so that the statements are prepared already."""
WAL_HEADER = 32
WAL_FRAME_HEADER = 24


def proof(values: Sequence[Any]) -> int:
    """Return the checksum of a row."""
    digest = xxh3_64()
    for value in values:
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
        digest.update(type(value).__name__.encode() + len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.intdigest() >> 1  # SQLite's integers have a sign


def damaged_rows(database: sqlite3.Connection) -> Iterator[str]:
    """Say which rows do not prove themselves: SQLite's own check does not look at values."""
    known = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table in TABLES:
        if table in known:
            for row in database.execute(f"SELECT * FROM {table}"):  # noqa: S608
                values = _values(table, row)
                if proof(values) != row[-1]:
                    yield f"a row of {table} is damaged: {values[0]!r}"


def _values(table: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what of a row its checksum is of."""
    return row[1:-1] if table == "deliveries" else row[:-1]


class Kept(NamedTuple):
    """Everything that the state holds, as it was written."""

    sessions: list[tuple[Any, ...]]
    subscriptions: list[tuple[str, bytes, dict[str, Any]]]
    incoming: list[tuple[str, array[int]]]
    deliveries: Iterable[tuple[Any, ...]]
    retained: Iterable[tuple[bytes, dict[str, Any], bytes]]
    groups: list[tuple[str, bytes, dict[str, Any]]]
    consumers: list[tuple[str, dict[str, Any]]]
    topics: list[bytes]
    sinks: list[tuple[str, dict[str, Any]]]


class State:
    """The database. Opened in the thread that starts the broker, then used by the one that writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damages: list[str] = []
        """What was found wrong with the database."""
        header_is_bad = _has_bad_wal_header(path)
        try:
            self._open()
            self._check()
        except sqlite3.DatabaseError as error:
            self.damages.append(f"{path.name}: {error}; it is set aside, and sessions begin anew")
            self._set_aside()
            self._open()
            return
        if header_is_bad or self._lost_commits():
            self.damages.append(f"{path.name}-wal: damaged; the last changes of sessions may be lost")

    def _open(self) -> None:
        self._database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._database.text_factory = _text
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("PRAGMA cell_size_check = ON")
        self._database.executescript(_SCHEMA)

    def _check(self) -> None:
        found = self._database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(" ".join(str(found).split()))

    def _set_aside(self) -> None:
        """Keep a damaged database for whoever wants to look at it, and begin another."""
        self._database.close()
        number = 1
        while (aside := self._path.with_name(f"{self._path.name}.damaged-{number}")).exists():
            number += 1
        self._path.rename(aside)
        for end in ("-wal", "-shm"):
            self._path.with_name(self._path.name + end).unlink(missing_ok=True)

    def _lost_commits(self) -> bool:
        """Tell whether the write-ahead log goes on where SQLite stopped reading, as a frame is damaged."""
        used = self._database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
        try:
            raw = self._path.with_name(self._path.name + "-wal").read_bytes()
        except FileNotFoundError:
            return False
        size = WAL_FRAME_HEADER + int.from_bytes(raw[8:12], "big")
        at = WAL_HEADER + used * size
        before = raw[at - size + 16 : at - size + 24] if used else raw[24:32]
        while at + size <= len(raw):
            frame = raw[at : at + size]
            same = [frame[8:12] == raw[16:20], frame[12:16] == raw[20:24]]
            if not any(same):
                return False  # of an earlier round of the file
            if not all(same) or _wal_checksum(raw[3], frame[:8] + frame[24:], before) != frame[16:24]:
                return True
            before = frame[16:24]  # written, and never committed
            at += size
        return False

    def _rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that prove themselves; the others are reported, and removed."""
        try:
            rows = self._database.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608
        except sqlite3.DatabaseError as error:
            self.damages.append(f"{self._path.name}: {table}: {error}")
            return
        good = [row for row in rows if proof(_values(table, row)) == row[-1]]
        if len(good) < len(rows):
            for row in rows:
                if proof(_values(table, row)) != row[-1]:
                    name = _values(table, row)[0]
                    self.damages.append(f"{self._path.name}: a row of {table} is damaged: {name!r}")
            self._replace(table, good)
        yield from (_values(table, row) for row in good)

    def _replace(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        """Keep only these rows of a table."""
        places = ", ".join("?" * len(rows[0])) if rows else ""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute(f"DELETE FROM {table}")  # noqa: S608
            if rows:
                self._database.executemany(f"INSERT INTO {table} VALUES ({places})", rows)  # noqa: S608
            self._database.execute("COMMIT")
        except sqlite3.Error:  # then they are found again the next time
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")

    def streams(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return the number of each stream, given once and for all, and up to where it was applied.

        That is -1 if it cannot be known, as the row is damaged.
        """
        raw = self._database.execute("SELECT number, name FROM streams").fetchall()
        before = len(self.damages)
        known = {name: (number, applied) for number, name, applied in self._rows("streams")}
        unknown = -1 if len(self.damages) > before else 0
        for number, name in raw:  # a stream whose row is damaged may still have its number
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
        """Return everything there is."""
        return Kept(
            list(self._rows("sessions")),
            [(client, of, json.loads(options)) for client, of, options in self._rows("subscriptions")],
            [(client, array("H", ids)) for client, ids in self._rows("incoming")],
            self._rows("deliveries"),
            ((topic, json.loads(message), payload) for topic, message, payload in self._rows("retained")),
            [(name, of, json.loads(state)) for name, of, state in self._rows("groups")],
            [(name, json.loads(state)) for name, state in self._rows("consumers")],
            [topic for (topic,) in self._rows("topics")],
            [(name, json.loads(state)) for name, state in self._rows("sinks")],
        )

    def commit(self, changes: Sequence[Change]) -> None:
        """Make changes, all or none, and return when they are safe."""
        database = self._database
        database.execute("BEGIN IMMEDIATE")
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
            database.execute("COMMIT")
        except sqlite3.Error:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def _execute(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        """Make changes of one kind."""
        at = 0
        for size in _TOGETHER:
            while len(rows) - at >= size:
                together = chain.from_iterable(rows[at : at + size])
                self._database.execute(_for_many(statement, size), tuple(together))
                at += size

    def close(self) -> None:
        """Close the database, its changes all in one file."""
        self._database.close()


@cache
def _for_many(statement: str, number: int) -> str:
    """Return what does to so many rows what a statement does to one.

    SQLite lets go of the interpreter's lock at every statement, and with a busy event loop it takes long to
    have it again.
    """
    if number == 1:
        return statement
    word, joint = (" VALUES ", ", ") if statement.startswith("INSERT") else (" WHERE ", " OR ")
    head, _, one = statement.partition(word)
    return head + word + joint.join([one] * number)


def _has_bad_wal_header(path: Path) -> bool:
    """Tell whether the write-ahead log begins with what SQLite would not take for its beginning."""
    try:
        with path.with_name(path.name + "-wal").open("rb") as file:
            header = file.read(WAL_HEADER)
    except FileNotFoundError:
        return False
    if len(header) < WAL_HEADER:
        return False  # nothing was ever committed to it
    return _wal_checksum(header[3], header[:24], bytes(8)) != header[24:32]


def _wal_checksum(magic: int, data: bytes, before: bytes) -> bytes:
    """Compute SQLite's checksum of a part of a write-ahead log, which goes on from the part before."""
    count = len(data) // 4
    words = unpack(f"{'>' if magic & 1 else '<'}{count}I", data)
    first, second = unpack(">2I", before)
    for at in range(0, count, 2):
        first = first + words[at] + second & 0xFFFF_FFFF
        second = second + words[at + 1] + first & 0xFFFF_FFFF
    return pack(">2I", first, second)


def _text(data: bytes) -> str:
    """Read a text, however damaged it is: that it is will show."""
    return data.decode("utf-8", "surrogateescape")

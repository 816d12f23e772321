"""The tables of the state: their schema, the checksum of each row, and checks of a database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from xxhash import xxh3_64

STATE_FILE = "state.sqlite"
"""The name of the database in the data folder."""

SCHEMA = """
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
CREATE TABLE IF NOT EXISTS pending (name TEXT NOT NULL, block BLOB NOT NULL, bits BLOB NOT NULL,
    proof INTEGER NOT NULL, PRIMARY KEY (name, block)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS accounts (kind TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    proof INTEGER NOT NULL, PRIMARY KEY (kind, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cluster (kind TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    proof INTEGER NOT NULL, PRIMARY KEY (kind, name)) WITHOUT ROWID;
"""
# SQLite does not notice a changed byte in a value, so every row ends with a checksum of its other values.

OWNER, STORED = "owner", "stored"
"""The kinds of rows of accounts."""

KEYS = {
    "streams": ("number",),
    "sessions": ("client_id",),
    "subscriptions": ("client_id", "filter"),
    "incoming": ("client_id",),
    "deliveries": ("number",),
    "retained": ("topic",),
    "groups": ("name", "filter"),
    "consumers": ("name",),
    "topics": ("topic",),
    "sinks": ("name",),
    "pending": ("name", "block"),
    "accounts": ("kind", "name"),
    "cluster": ("kind", "name"),
}
"""The primary key of each table, which is its first columns."""

PAGE = 4096
"""Bytes of a page: SQLite's default."""
HEADER = 100
_MODES = slice(18, 20)
"""Header bytes that say whether there may be a write-ahead log."""
_FIXED = (slice(20, 24), slice(44, 92))
"""Header bytes that are the same in every state. SQLite trusts or ignores them."""
_MASTER = "SELECT type, name, tbl_name, sql FROM sqlite_master"


def text(data: bytes) -> str:
    """Decode a text that may be damaged; its checksum will show that."""
    return data.decode("utf-8", "surrogateescape")


def proof(values: Sequence[Any]) -> int:
    """Return the checksum of a row."""
    digest = xxh3_64()
    for value in values:
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
        digest.update(type(value).__name__.encode() + len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.intdigest() >> 1  # SQLite's integers are signed


def values_of(table: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of a row that its checksum covers."""
    return row[1:-1] if table == "deliveries" else row[:-1]


def is_proven(table: str, row: tuple[Any, ...]) -> bool:
    """Return whether a row is as it was written."""
    return bool(proof(values_of(table, row)) == row[-1])


def new_database() -> sqlite3.Connection:
    """Return an empty state in memory."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.text_factory = text
    database.execute(f"PRAGMA page_size = {PAGE}")
    database.executescript(SCHEMA)
    return database


@cache
def _whole() -> tuple[bytes, frozenset[tuple[Any, ...]]]:
    """Return the header and the schema of an undamaged state."""
    database = new_database()
    try:
        return database.serialize()[:HEADER], frozenset(database.execute(_MASTER))
    finally:
        database.close()


def fault(header: bytes, database: sqlite3.Connection) -> str | None:
    """Return the first fault in the structure of a database; None if there is none.

    Rows missing in an index count, because deletions find rows through it.
    """
    whole, schema = _whole()
    database.execute("PRAGMA cell_size_check = ON")
    for (found,) in database.execute("PRAGMA integrity_check(1)"):
        if found != "ok":
            return " ".join(str(found).split())[:200]
    for one in database.execute(_MASTER):
        if one not in schema:  # a missing table is created later
            return f"its schema is damaged: {str(one[1])[:100]!r}"
    right = header[_MODES] in (b"\1\1", b"\2\2") and all(header[one] == whole[one] for one in _FIXED)
    if header and not right:  # a new file is empty
        return "its header is damaged"
    return None


def damaged_rows(database: sqlite3.Connection) -> Iterator[str]:
    """Yield a description of each row with a wrong checksum: SQLite's own check ignores values."""
    known = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table in KEYS:
        if table in known:
            for row in database.execute(f"SELECT * FROM {table}"):  # noqa: S608
                if not is_proven(table, row):
                    yield f"a row of {table} is damaged: {values_of(table, row)[0]!r}"

"""Copies the readable rows of a damaged state into a new one.

Every row has a checksum, so rows that SQLite misreads in a damaged tree are recognized. A table is read
forwards as far as possible, then backwards; if that was not everything, every page is read separately. So at
most the rows on damaged pages are lost.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from pyrite.journal.tables import KEYS, OWNER, PAGE, STORED, is_proven, new_database, proof, text
from pyrite.journal.wal import log_of, read_database
from pyrite.storage.files import Files, write_safely

Row = tuple[Any, ...]

_WORDS = {"subscriptions": "no_local", "groups": "returned", "consumers": "within", "sinks": "batch"}
"""A word in the JSON of each row, which tells tables of the same shape apart: a damaged tree may mix them."""
_TYPES: dict[str, tuple[Any, ...]] = {
    "streams": (int, str, int),
    "sessions": (str, int, float | None),
    "subscriptions": (str, bytes, str),
    "incoming": (str, bytes),
    "deliveries": (int, str, bytes),
    "retained": (bytes, str, bytes),
    "groups": (str, bytes, str),
    "consumers": (str, str),
    "topics": (bytes,),
    "sinks": (str, str),
    "pending": (str, bytes, bytes),
    "accounts": (str, str, str),
    "cluster": (str, str, str),
}
_OF_ACCOUNTS = {OWNER, STORED}
"""The first column of accounts, which tells them from rows of `cluster`."""
_CELLS = """
CREATE TABLE rows (a INTEGER PRIMARY KEY, b, c, d);
CREATE TABLE cells (a, b, c, d, PRIMARY KEY (a, b)) WITHOUT ROWID;
"""
"""Tables as which any leaf page can be read: with an integer key, and without."""
_KINDS = {13: "rows", 10: "cells", 2: "cells"}
"""The table for a page, by the page's first byte."""


class Table(NamedTuple):
    """The readable part of a table."""

    rows: dict[Row, Row]
    """By primary key."""
    damaged: int
    """How many rows had a wrong checksum."""
    complete: bool
    """Whether all rows were read."""


Tables = dict[str, Table]


def salvage(path: Path, reason: str, files: Files) -> str:
    """Replace a damaged state by its readable rows; return what was lost, in words.

    A crash at any moment costs nothing: until the new state has its name, the old one is unchanged, including
    the changes in its write-ahead log.
    """
    image, _ = read_database(path)
    pages = image + bytes(-len(image) % PAGE)
    with closing(new_database()) as fresh:  # SQLite reads nothing if a table begins beyond the end
        pages += bytes(max(0, len(fresh.serialize()) - len(pages)))
    told_apart = _clear_free_pages(pages)
    tables = max((_read(one) for one in _readings(pages)), key=_number_of_rows)
    if told_apart and any(table.damaged or not table.complete for table in tables.values()):
        _add_from_pages(tables, pages)
    if not tables["streams"].complete:  # positions refer to stream numbers, which would be ambiguous
        tables = {table: Table({}, 0, False) for table in KEYS}
    aside = _free_name(path)
    try:
        write_safely(files, aside, path.read_bytes())
        if log_of(path).exists():
            write_safely(files, log_of(aside), log_of(path).read_bytes())
            write_safely(files, path, bytes(image))
    except OSError:
        for copy in (aside, log_of(aside)):
            files.remove(copy)
        raise
    files.remove(log_of(path))  # SQLite would apply it to the new state
    files.remove(path.with_name(path.name + "-shm"))
    files.sync_folder(path.parent)
    write_safely(files, path, _database_of(tables))
    return f"{path.name}: {reason}; it is set aside as {aside.name}; {_summary(tables)}"


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside


def _readings(pages: bytearray) -> Iterator[bytes]:
    """Yield a database as it is, and with the first page of a new one, which holds the schema.

    The root page of each table never changes.
    """
    with closing(new_database()) as fresh:
        first = fresh.serialize()[:PAGE]
    for page in (bytes(pages[:PAGE]), first):
        yield _with_first_page(pages, page)


def _with_first_page(pages: bytearray, page: bytes) -> bytes:
    """Return a database with another first page, and a header that matches the file."""
    changed = bytearray(page) + pages[PAGE:]
    changed[18:20] = b"\1\1"  # there is no write-ahead log
    changed[24:28] = changed[92:96]  # the number of pages is valid
    changed[28:32] = (len(changed) // PAGE).to_bytes(4, "big")
    return bytes(changed)


def _clear_free_pages(pages: bytearray) -> bool:
    """Clear unused pages, which hold old rows; return whether all of them were identified."""

    def number(at: int) -> int:
        return int.from_bytes(pages[at : at + 4], "big")

    trunk, expected = number(32), number(36)
    free: list[int] = []
    while 1 < trunk <= len(pages) // PAGE and len(free) < expected:
        at = (trunk - 1) * PAGE
        count = min(number(at + 4), PAGE // 4 - 2)
        free += [trunk, *(number(at + 8 + 4 * one) for one in range(count))]
        trunk = number(at)
    if len({*free}) != expected or not all(1 < one <= len(pages) // PAGE for one in free):
        return False
    for one in free:
        pages[(one - 1) * PAGE : one * PAGE] = bytes(PAGE)
    return True


def _read(image: bytes) -> Tables:
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(image)
        database.text_factory = text
        tables = {table: _read_table(database, table) for table in KEYS}
        return tables | {"streams": _with_names(database, tables["streams"])}


def _read_table(database: sqlite3.Connection, table: str) -> Table:
    size = len(KEYS[table])
    found: dict[Row, Row] = {}
    damaged: set[Row] = set()
    complete = False
    for descending in (False, True):
        rows, complete = _scan(database, table, KEYS[table], descending)
        for row in rows:
            if not _is_good(table, row) or found.setdefault(row[:size], row) != row:
                damaged.add(row)
        if complete:
            break
    for row in damaged:
        if is_proven(table, row):  # of two rows with the same key, one is old
            found.pop(row[:size], None)
    return Table(found, len(damaged), complete)


def _scan(
    database: sqlite3.Connection, table: str, keys: tuple[str, ...], descending: bool
) -> tuple[list[Row], bool]:
    """Return the readable rows of a table, and whether these are all."""
    order = f"ORDER BY {', '.join(key + (' DESC' if descending else '') for key in keys)}"
    rows: list[Row] = []
    try:
        rows.extend(database.execute(f"SELECT * FROM {table} {order}"))  # noqa: S608
        return rows, True
    except (sqlite3.Error, MemoryError):  # a damaged length may be of any size
        pass
    # Python steps to the next row before it yields one, so the last good row was not yielded.
    beyond = f"({', '.join(keys)}) {'<' if descending else '>'} ({', '.join('?' * len(keys))})"
    where, values = (f"WHERE {beyond}", rows[-1][: len(keys)]) if rows else ("", ())
    try:
        rows += database.execute(f"SELECT * FROM {table} {where} {order} LIMIT 1", values)  # noqa: S608
    except (sqlite3.Error, MemoryError):
        pass
    return rows, False


def _with_names(database: sqlite3.Connection, streams: Table) -> Table:
    """Add streams whose rows are damaged: an index has their names and numbers."""
    rows = dict(streams.rows)
    known = {row[1] for row in rows.values()}
    complete = streams.complete
    try:
        for number, name in database.execute(
            "SELECT number, name FROM streams INDEXED BY sqlite_autoindex_streams_1"
        ):
            if (number,) not in rows and name not in known and isinstance(name, str):
                values = (number, name, -1)  # how far it was applied is unknown
                rows[number,] = (*values, proof(values))
        complete = True
    except (sqlite3.Error, MemoryError):
        pass
    return Table(rows, streams.damaged, complete)


def _is_good(table: str, row: Row) -> bool:
    """Return whether a row is of this table and undamaged."""
    types = _TYPES[table]
    return (
        len(row) == len(types) + 1
        and all(map(isinstance, row, types))
        and is_proven(table, row)
        and (table not in _WORDS or _WORDS[table] in json.loads(row[-2]))
        and (table not in ("accounts", "cluster") or (table == "accounts") == (row[0] in _OF_ACCOUNTS))
    )


def _add_from_pages(tables: Tables, pages: bytearray) -> None:
    """Add rows that no tree leads to any more, by reading each page as a tree."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.execute(f"PRAGMA page_size = {PAGE}")
        database.executescript(_CELLS)
        database.deserialize(_with_first_page(pages, database.serialize()[:PAGE]))
        database.text_factory = text
        for number in range(2, len(pages) // PAGE + 1):
            kind = _KINDS.get(pages[(number - 1) * PAGE])
            if kind is None:
                continue
            database.execute("PRAGMA writable_schema = ON")
            database.execute("UPDATE sqlite_master SET rootpage = ? WHERE name = ?", (number, kind))
            database.execute("PRAGMA writable_schema = RESET")
            for descending in (False, True):
                for row in _scan(database, kind, ("a",) if kind == "rows" else ("a", "b"), descending)[0]:
                    _add(tables, row)


def _add(tables: Tables, row: Row) -> None:
    """Add a row to the table it belongs to, unless it is there."""
    while row and row[-1] is None:  # columns that the row does not have
        row = row[:-1]
    for table, keys in KEYS.items():
        key = row[: len(keys)]
        if key not in tables[table].rows and _is_good(table, row):
            tables[table].rows[key] = row
            return


def _number_of_rows(tables: Tables) -> int:
    return sum(len(table.rows) for table in tables.values())


def _database_of(tables: Tables) -> bytes:
    with closing(new_database()) as database:
        database.execute("BEGIN")
        for table, (rows, _, _) in tables.items():
            for row in rows.values():
                places = ", ".join("?" * len(row))
                database.execute(f"INSERT INTO {table} VALUES ({places})", row)  # noqa: S608
        database.execute("COMMIT")
        return database.serialize()


def _summary(tables: Tables) -> str:
    """Describe how many rows of each table were kept and lost."""
    if not _number_of_rows(tables):
        return "nothing of it can be read, and sessions begin anew"
    kept = [f"{len(one.rows):,} of {table}" for table, one in tables.items() if one.rows]
    lost = []
    for table, one in tables.items():
        number = max(one.damaged, _sessions_missed(tables) if table == "sessions" else 0)
        if not one.complete:
            lost.append(f"{f'at least {number:,}' if number else 'an unknown number'} of {table}")
        elif number:
            lost.append(f"{number:,} of {table}")
    return f"kept: {', '.join(kept)}; lost: {', '.join(lost) or 'nothing'}"


def _sessions_missed(tables: Tables) -> int:
    """Return how many lost sessions have left other rows."""
    owners = {row[0] for table in ("subscriptions", "incoming") for row in tables[table].rows.values()}
    owners |= {row[1] for row in tables["deliveries"].rows.values()}
    return len(owners - {client_id for (client_id,) in tables["sessions"].rows})

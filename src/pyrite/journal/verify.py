"""Checks every byte of a data folder, streams and state, and reports exactly what is damaged.

A broker may write to the folder meanwhile: this only reads, and a write in progress is not damage.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from pyrite.journal.tables import HEADER, STATE_FILE, damaged_rows, fault, text
from pyrite.journal.wal import WriteAheadLog, log_of, read_database, read_log
from pyrite.storage.folder import is_in_use
from pyrite.storage.segment import Damage
from pyrite.storage.stream import streams_in
from pyrite.storage.verify import WRITE_TIME, Progress, size_of_file, verify_streams


def verify(
    data: Path, stream: str | None = None, progress: Progress = lambda _done, _total: None
) -> list[Damage]:
    """Return the damage in a data folder; only in one of its streams, if `stream` names one."""
    if stream is not None:
        return verify_streams([data / "streams" / stream], progress)
    state = data / STATE_FILE
    size = size_of_file(state) + size_of_file(log_of(state))
    seen = 0

    def streams_progress(done: int, total: int) -> None:
        nonlocal seen
        seen = done
        progress(done, total + size)

    damages = verify_streams(streams_in(data), streams_progress)
    damages += check_state(state)
    if size:
        progress(seen + size, seen + size)
    return damages


def check_state(path: Path) -> list[Damage]:
    """Check the state (sessions, subscriptions, retained messages and everything else that is not a message);
    change nothing.
    """
    if not path.exists():
        return []
    while True:
        in_use = is_in_use(path.parent)
        found, log = _look_at_live_state(path) if in_use else _look_at_state(path)
        if is_in_use(path.parent) == in_use:  # else a broker started or ended meanwhile: check again
            break
    damages = [Damage("", path.name, -1, -1, reason) for reason in found]
    if log.damaged_at >= 0:
        reason = f"damaged at byte {log.damaged_at}; the last changes of sessions are lost"
        damages.append(Damage("", log_of(path).name, -1, -1, reason))
    return damages


def _look_at_state(path: Path) -> tuple[list[str], WriteAheadLog]:
    """Check a state that no broker uses, in memory: SQLite would create and change files beside it."""
    image, log = read_database(path)
    header = bytes(image[:HEADER])
    if header[18:20] == b"\2\2":
        image[18:20] = b"\1\1"  # a database in memory has no write-ahead log
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            database.deserialize(image)
        except sqlite3.Error as error:
            return [str(error)], log
        return _faults(header, database), log


def _look_at_live_state(path: Path) -> tuple[list[str], WriteAheadLog]:
    """Check a state that a broker uses, through SQLite, which knows what is being written."""
    log = read_log(path)
    if log.damaged_at >= 0:
        time.sleep(WRITE_TIME)
        again = read_log(path)
        if again.damaged_at != log.damaged_at:
            log = again._replace(damaged_at=-1)  # a write was in progress
    with path.open("rb") as file:
        header = file.read(HEADER)
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        return _faults(header, database), log


def _faults(header: bytes, database: sqlite3.Connection) -> list[str]:
    database.text_factory = text
    try:
        reason = fault(header, database)
        return list(damaged_rows(database)) if reason is None else [reason]
    except sqlite3.Error as error:
        return [str(error)]

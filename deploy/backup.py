#!/usr/bin/env python3
"""Copy the data folder of a broker that is running: backup.py DATA COPY.

The copy has every message that was acknowledged before it was begun, and the sessions, subscriptions and
retained messages of that time. The order matters:

1. The state first, by SQLite's own way of copying a database in use. What messages did to it later is found
   in the log again when a broker starts on the copy.
2. Then the streams. A segment may become Parquet meanwhile, and is removed then; or a new one is begun. So
   all is looked through again until no file came or went. Then only the newest segment has grown, and of that
   the copy has what was there when it was read; a batch that was cut off at its end is dropped at the start.
3. What sinks have staged.

It needs nothing but Python, and to run as the user that the broker runs as.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from pathlib import Path

PASSES = 100
"""How often the streams are looked through before it is given up."""


def main(arguments: list[str]) -> int:
    """Copy as the command line says; returns the exit code."""
    if len(arguments) != 2:
        print("usage: backup.py DATA COPY", file=sys.stderr)
        return 2
    try:
        back_up(Path(arguments[0]), Path(arguments[1]))
    except (OSError, sqlite3.Error, ValueError) as error:
        print(f"backup.py: {error}", file=sys.stderr)
        return 1
    return 0


def back_up(data: Path, copy: Path) -> None:
    """Copy a data folder to a folder that is not there, or empty."""
    if not (data / "format").is_file():
        raise ValueError(f"{data}: expected a data folder of Pyrite's")
    if copy.exists() and any(copy.iterdir()):
        raise ValueError(f"{copy}: expected a folder that is empty, or not there")
    copy.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy_state(data / "state.sqlite", copy / "state.sqlite")
    (copy / "streams").mkdir()
    for stream in sorted((data / "streams").iterdir()):
        copy_stream(stream, copy / "streams" / stream.name)
    copy_staging(data / "staging", copy / "staging")
    # A start of the machine that never was: so a broker on the copy gives no offset again that the one which
    # went on may have given to another message.
    (copy / "boot").write_text("a copy\n")
    shutil.copy2(data / "format", copy / "format")  # last: without it, no broker starts on the copy
    os.sync()


def copy_state(database: Path, copy: Path) -> None:
    """Copy a database that is in use."""
    source = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
    target = sqlite3.connect(copy)
    try:
        source.backup(target)
    finally:
        target.close()
        source.close()


def copy_stream(stream: Path, copy: Path) -> None:
    """Copy a stream's files until none came or went while they were copied."""
    copy.mkdir()
    copied: dict[str, tuple[int, int]] = {}
    for _ in range(PASSES):
        names = set(os.listdir(stream))
        # The index before what it is about: it must not know of more.
        for name in sorted(names, key=lambda one: (not one.endswith(".index"), one)):
            copy_if_changed(stream / name, copy / name, copied)
        if set(os.listdir(stream)) == names:
            for name in copied.keys() - names:
                (copy / name).unlink()
            return
    raise ValueError(f"{stream}: its files changed all the time; try again")


def copy_if_changed(source: Path, target: Path, copied: dict[str, tuple[int, int]]) -> None:
    """Copy a file, unless it is as it was when it was copied last, or gone."""
    try:
        found = source.stat()
        known = (found.st_size, found.st_mtime_ns)
        if copied.get(source.name) != known:
            shutil.copy2(source, target)
            copied[source.name] = known
    except FileNotFoundError:
        pass


def copy_staging(staging: Path, copy: Path) -> None:
    """Copy what sinks have staged, as far as it is still there."""
    for sink in files_in(staging):
        (copy / sink.name).mkdir(parents=True)
        for part in files_in(sink):
            copy_if_there(part, copy / sink.name / part.name)


def files_in(folder: Path) -> list[Path]:
    """Return what is in a folder; nothing if it is gone, as that of a sink is when all was committed."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def copy_if_there(source: Path, target: Path) -> None:
    """Copy a file, unless it is gone."""
    try:
        shutil.copy2(source, target)
    except FileNotFoundError:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""Back up the data folder of a running broker: backup.py DATA COPY.

The backup has every message that was acknowledged before it started, and the sessions, subscriptions and
retained messages of that moment. The order matters:

1. The state first, with SQLite's backup API. Later changes by messages are recovered from the log
   when a broker starts on the backup.
2. Then the streams. In the meantime, a segment may be converted to Parquet and removed, or a new one may be
   created. So the folder is copied again until no file has appeared or disappeared. By then only the newest
   segment has grown; an incomplete batch at the end of its copy is dropped when a broker starts.
3. The staged rows of sinks.

Needs nothing but Python. Run it as the user that the broker runs as.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from pathlib import Path

MAX_PASSES = 100
"""Number of passes over a stream before giving up."""


def main(arguments: list[str]) -> int:
    """Run the backup; returns the exit code."""
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
    """Copy a data folder to a new or empty folder."""
    if not (data / "format").is_file():
        raise ValueError(f"{data} is not a Pyrite data folder")
    if copy.exists() and any(copy.iterdir()):
        raise ValueError(f"{copy} is not empty: give an empty folder or a new one")
    copy.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy_state(data / "state.sqlite", copy / "state.sqlite")
    (copy / "streams").mkdir()
    for stream in sorted((data / "streams").iterdir()):
        copy_stream(stream, copy / "streams" / stream.name)
    copy_staging(data / "staging", copy / "staging")
    # A boot id that never existed, which makes a broker on the copy skip offsets, as after a power failure:
    # the original broker may have given the next ones to other messages.
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
    """Copy a stream's files, again until none appeared or disappeared during a pass."""
    copy.mkdir()
    copied: dict[str, tuple[int, int]] = {}
    for _ in range(MAX_PASSES):
        names = set(os.listdir(stream))
        # The tail before its segment, where its messages may be moved meanwhile. The index as well, as
        # it must not refer to data missing from the copy.
        for name in sorted(names, key=lambda one: (not one.endswith((".tail", ".index")), one)):
            copy_if_changed(stream / name, copy / name, copied)
        if set(os.listdir(stream)) == names:
            for name in copied.keys() - names:
                (copy / name).unlink()
            return
    raise ValueError(f"{stream}: files kept changing during {MAX_PASSES} passes; try again")


def copy_if_changed(source: Path, target: Path, copied: dict[str, tuple[int, int]]) -> None:
    """Copy a file unless it is unchanged since it was last copied, or gone."""
    try:
        found = source.stat()
        known = (found.st_size, found.st_mtime_ns)
        if copied.get(source.name) != known:
            shutil.copy2(source, target)
            copied[source.name] = known
    except FileNotFoundError:
        pass


def copy_staging(staging: Path, copy: Path) -> None:
    """Copy the staged rows of sinks that still exist."""
    for sink in files_in(staging):
        (copy / sink.name).mkdir(parents=True)
        for part in files_in(sink):
            copy_if_there(part, copy / sink.name / part.name)


def files_in(folder: Path) -> list[Path]:
    """Return the files in a folder; none if it is gone, as after a sink's last commit."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def copy_if_there(source: Path, target: Path) -> None:
    """Copy a file unless it is gone."""
    try:
        shutil.copy2(source, target)
    except FileNotFoundError:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A snapshot: a consistent copy of a node's data, which another node can start from.

The state is copied first, then the log is linked: it may go beyond the state, as after a crash. What the
state does not include is applied again from the order, and what the log has already is not written twice.

    format            the format of the data folder
    state.sqlite      the state
    streams/NAME/     all segments of each stream, sealed; hard links, which cost no space and never change
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyrite.journal.tables import STATE_FILE

if TYPE_CHECKING:
    from pyrite.cluster.journal import ClusterJournal

_OF_SEGMENT = re.compile(r"(\d{20})(-\d{20})?\..+")
"""Name of a file that belongs to a segment."""

Done = Callable[[str], object]
"""Called with why there is no snapshot; empty if there is one."""


def take_snapshot(journal: ClusterJournal, target: Path, done: Done) -> None:
    """Make a snapshot in a folder of the same file system, whose contents are replaced.

    The node goes on meanwhile. The snapshot includes at least everything that was committed before.
    """
    ends: dict[str, int] = {}

    def copy_state() -> str:
        try:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(0o700, parents=True)
            journal.database.copy_to(target / STATE_FILE)
        except Exception as error:
            return f"the state cannot be copied to {target}: {error}"
        return ""

    def seal() -> str:
        try:
            for stream, writer in journal.log.writers.items():
                ends[stream.name] = writer.seal_now()
        except OSError as error:
            return f"a segment cannot be sealed: {error}"
        return ""

    def link() -> str:
        try:
            shutil.copyfile(journal.folder.path / "format", target / "format")
            for name, end in ends.items():
                _link_stream(journal.folder.streams / name, target / "streams" / name, end)
        except OSError as error:
            return f"segments cannot be linked in {target}: {error}"
        return ""

    def state_copied(wrong: str | None) -> None:
        if wrong or wrong is None:
            done(wrong or "the state cannot be read")
        else:
            journal.writer.writing.run(seal, sealed, str)

    def sealed(wrong: str) -> None:
        if wrong:
            done(wrong)
        else:
            journal.keeping.run(link, done, str)

    journal.writer.read_state(copy_state, state_copied)


def _link_stream(source: Path, target: Path, end: int) -> None:
    """Link all files of segments that begin before an offset."""
    target.mkdir(0o700, parents=True)
    for path in sorted(source.iterdir()):
        match = _OF_SEGMENT.fullmatch(path.name)
        if match is not None and int(match[1]) < end and path.suffix != ".tmp":
            os.link(path, target / path.name)

"""What sinks have staged: files of messages that are not published yet, and the batches they become.

DIR/staging/SINK/PART.arrow    an Arrow stream: topic, payload, and what else of queries.SCHEMA was given

A part is safe once it is there. It is published by a commit (sinks.py), and gone then.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyrite.broker.message import Batch, MixedBatch
from pyrite.sinks.rows import ACCEPTED, check_rows, check_schema
from pyrite.storage import columns
from pyrite.storage.files import Appending, Files
from pyrite.storage.query import QueryError

NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""What sinks and parts may be called."""
FILE = re.compile(r"([0-9a-f]{16}-)?[A-Za-z0-9_-]{1,128}")
"""What the file of a part may be called: a user's parts have a prefix of its own."""
ROWS = 16_384
"""Messages that are published at a time."""
MAX_REST = 16_383
"""Bytes after the head that a message of a mixed batch may have."""
FEW = 4
"""Messages that follow one another and are alike, on average, below which batches are mixed."""
KEPT = 24 * 3600.0
"""Seconds after which a part that no one committed is removed."""
STEP = 8 * 1024 * 1024
"""Bytes of a part after which it is asked whether it may grow."""
BLOCK = 4096
"""Bytes that a file takes at least."""


def check_name(kind: str, name: str) -> str:
    """Return a name that may be that of a file; QueryError if it may not."""
    if not NAME.fullmatch(name):
        raise QueryError(f"{kind} {name!r}: expected up to 128 letters, digits, '-' and '_'")
    return name


class Staging:
    """The folder with what was staged."""

    def __init__(self, data: Path, files: Files | None = None) -> None:
        self.folder = data / "staging"
        self._files = files or Files()

    def path(self, sink: str, part: str) -> Path:
        """Return where a part lies."""
        if not FILE.fullmatch(part):
            raise QueryError(f"part {part!r}: expected up to 128 letters, digits, '-' and '_'")
        return self.folder / check_name("sink", sink) / f"{part}.arrow"

    def write(
        self,
        sink: str,
        part: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        grow: Callable[[], object] = bool,
    ) -> int:
        """Write a part, in place of one of that name; it is safe when this returns the number of its rows.

        While it grows, `grow` is called; it raises an error if there is no room for more.
        """
        check_schema(schema)
        path = self.path(sink, part)
        for folder in (self.folder, path.parent):
            self._files.make_folder(folder, parents=True)
        temporary = path.with_suffix(f".{os.getpid()}-{time.monotonic_ns()}.tmp")
        count = asked = 0
        try:
            with closing(Appending(self._files, temporary)) as file:
                with pa.ipc.new_stream(file, schema) as writer:
                    for rows in batches:
                        check_rows(rows)
                        writer.write_batch(rows)
                        count += rows.num_rows
                        if file.tell() - asked >= STEP:
                            asked = file.tell()
                            grow()
                file.sync()
            self._files.rename(temporary, path)
            for folder in (path.parent, self.folder, self.folder.parent):
                self._files.sync_folder(folder)
        except BaseException as error:
            self._files.remove(temporary)
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                text = f"part {part!r} of sink {sink!r} cannot be kept: {error.strerror or error}"
                raise QueryError(text) from None
            raise
        return count

    def remove(self, sink: str, parts: Sequence[str] | None, needed: Collection[str] = ()) -> None:
        """Remove parts, if they are there, or all there are, but for those that are needed still."""
        folder = self.folder / check_name("sink", sink)
        paths = _files_in(folder) if parts is None else [self.path(sink, part) for part in parts]
        for path in paths:
            if path.stem not in needed:
                self._files.remove(path)
        self._remove_if_empty(folder)

    def missing(self, sink: str, parts: Sequence[str]) -> list[str]:
        """Return which parts are not there."""
        return [part for part in parts if not self.path(sink, part).exists()]

    def size(self, counts: Callable[[str, str], bool]) -> int:
        """Return how many bytes are staged, of those parts of sinks that count."""
        found = 0
        for folder in _files_in(self.folder):
            for path in _files_in(folder):
                part = path.name.partition(".")[0]  # also of a file that is being written
                if counts(folder.name, part):
                    with suppress(FileNotFoundError):
                        found += max(path.stat().st_size, BLOCK)
        return found

    def read(self, sink: str, parts: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of parts, in order, some at a time; of the files, what is looked at is read."""
        for part in parts:
            with pa.memory_map(str(self.path(sink, part))) as file, pa.ipc.open_stream(file) as reader:
                for rows in reader:
                    for at in range(0, rows.num_rows, ROWS):
                        yield rows.slice(at, ROWS)

    def tidy(self, keep: Callable[[str], bool]) -> None:
        """Remove what no one has committed for long, but for sinks that are to be kept."""
        before = time.time() - KEPT
        for folder in _files_in(self.folder):
            if keep(folder.name):
                continue
            for path in _files_in(folder):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < before:
                        self._files.remove(path)
            self._remove_if_empty(folder)

    def _remove_if_empty(self, folder: Path) -> None:
        with suppress(OSError):
            self._files.remove_folder(folder)


def _files_in(folder: Path) -> list[Path]:
    """Return what is in a folder, if it is one; others may remove it meanwhile."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def batches_of(rows: pa.RecordBatch, origin: str) -> list[Batch]:
    """Return rows as batches of the broker's, as few as possible."""
    levels = pc.unique(rows.column("qos").fill_null(1)).to_pylist() if "qos" in rows.schema.names else [1]
    plain = not any(_has_value(rows, name) for name in ACCEPTED if name not in ("topic", "payload", "qos"))
    if plain and len(levels) == 1 and _changes(rows) * FEW > rows.num_rows:
        mixed = _mixed(rows, levels[0], origin)
        if mixed is not None:
            return [mixed]
    return [batch for batch, _, _ in columns.runs(_completed(rows, origin))]


def _has_value(rows: pa.RecordBatch, name: str) -> bool:
    if name not in rows.schema.names:
        return False
    column = rows.column(name)
    return bool(pc.any(column).as_py()) if name == "retain" else column.null_count < rows.num_rows


def _changes(rows: pa.RecordBatch) -> int:
    """Count how often topic or size are not those of the message before."""
    topics = rows.column("topic").dictionary_encode().indices.to_numpy()
    sizes = pc.binary_length(rows.column("payload")).to_numpy()
    return int(np.count_nonzero((np.diff(topics) != 0) | (np.diff(sizes) != 0)))


def _completed(rows: pa.RecordBatch, origin: str) -> pa.RecordBatch:
    """Return rows with all columns that messages have in the log; offsets and times mean nothing."""
    count = rows.num_rows
    defaults = {"qos": 1, "retain": False, "offset": 0, "timestamp": 0, "client_id": origin}
    made = []
    for field in columns.SCHEMA:
        default = pa.scalar(defaults.get(field.name), field.type)
        if field.name == "offset":
            column = pa.array(np.arange(count))
        elif field.name in rows.schema.names:
            column = rows.column(field.name)
            if field.name in defaults:
                column = column.fill_null(default)
        else:
            column = pa.repeat(default, count) if default.is_valid else pa.nulls(count, field.type)
        made.append(column)
    return pa.RecordBatch.from_arrays(made, schema=columns.SCHEMA)


def _mixed(rows: pa.RecordBatch, qos: int, origin: str) -> MixedBatch | None:
    """Return plain rows of many topics or sizes as one batch; None if one is too large for that."""
    topics = rows.column("topic").dictionary_encode()
    sizes = pc.binary_length(rows.column("topic")).to_numpy()
    gap = 2 if qos else 0
    rest = 2 + sizes + gap + pc.binary_length(rows.column("payload")).to_numpy()
    if rest.max() > MAX_REST:
        return None
    heads = np.empty((rows.num_rows, 5), np.uint8)
    heads[:, 0] = 0x30 | qos << 1
    long = rest > 127
    heads[:, 1] = np.where(long, rest & 127 | 128, rest)
    heads[:, 2] = rest >> 7
    heads[:, 3] = sizes >> 8
    heads[:, 4] = sizes & 255
    used = np.ones((rows.num_rows, 5), np.bool_)
    used[:, 2] = long
    ends = np.zeros(rows.num_rows + 1, np.int32)
    np.cumsum(4 + long, out=ends[1:])
    head = pa.Array.from_buffers(
        pa.binary(), rows.num_rows, [None, pa.py_buffer(ends), pa.py_buffer(heads[used])]
    )
    whole = pc.binary_join_element_wise(
        head, rows.column("topic").cast(pa.binary()), bytes(gap), rows.column("payload"), b""
    )
    starts = np.frombuffer(whole.buffers()[1], np.int32, rows.num_rows, whole.offset * 4)
    names = [name.encode() for name in topics.dictionary.to_pylist()]
    return MixedBatch(
        whole.buffers()[2].to_pybytes()[: int(starts[-1] + 5 + rest[-1])],
        starts.tolist(),
        [names[code] for code in topics.indices.to_pylist()],
        (starts + 4 + long + sizes).tolist(),
        gap,
        qos,
        origin,
        -1,
    )

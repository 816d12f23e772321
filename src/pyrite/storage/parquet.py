"""Parquet segments: written once, never changed, and checked on every read.

    NAME.parquet           PAR1 | row groups | index | mark and checksum of the footer | footer
    NAME.parquet.index                         index
    NAME.parquet.footer                                mark and checksum of the footer | footer

Any Parquet reader can read them. Parquet's own checksums cover pages, but neither page headers nor the
footer, without which nothing can be read. So a segment has an index, with a record a row group that holds the
checksum of its bytes, and a checksum of the footer, in a place that Parquet leaves free. The two files beside
it are copies: damage at one place destroys only one of them.

The offsets in a row group are consecutive; where some are unused, another row group begins.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64, xxh3_64_intdigest

from pyrite.storage.files import Appending, Files, write_whole
from pyrite.storage.frames import Damaged
from pyrite.storage.index import (
    INDEX_HEADER,
    NO_RECORDS,
    RECORD,
    Records,
    end_of,
    index_of,
    prove,
    proven,
    read_index,
    record_of,
)
from pyrite.storage.query import FOREVER
from pyrite.storage.schema import SCHEMA
from pyrite.storage.segment import BatchCache, Damage, Passed, cut
from pyrite.storage.wanted import Topics

ROW_GROUP_ROWS = 64 * 1024
"""Rows after which a row group ends; it has at most twice as many."""
ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Bytes in memory after which a row group ends."""

MAGIC = b"PAR1"
FOOTER_HEADER = b"PYRITE footer 1\n"
_PROOF = len(FOOTER_HEADER) + 8
_END = b"pyrite.end"
_PAIRS = ["user_properties.list.element.key", "user_properties.list.element.value"]
_DISTINCT = ("offset", "timestamp", "payload", "retain", "correlation_data", "user_properties")
_OPTIONAL = [field.name for field in SCHEMA if field.nullable]
_TEXTS = {number: field.name for number, field in enumerate(SCHEMA) if field.name in ("topic", "client_id")}
"""The text columns that nearly every message has, by their number."""
_TOPIC = SCHEMA.get_field_index("topic")
_MAX_DICTIONARY_BYTES = 64 * 1024
"""Bytes of distinct texts up to which a column is decoded as a dictionary."""
_MEASURED = [name for name in SCHEMA.names if name not in ("payload", "user_properties")] + _PAIRS


def footer_of(path: Path) -> Path:
    """Return the path of the copy of a Parquet segment's footer."""
    return path.with_name(path.name + ".footer")


def row_groups(batches: Iterable[pa.RecordBatch], gaps: bool = False) -> Iterator[pa.RecordBatch]:
    """Join record batches to row groups, each of consecutive offsets unless `gaps` are allowed."""
    waiting: list[pa.RecordBatch] = []
    rows = size = after = 0
    for batch in batches:
        while batch.num_rows:
            first = batch.column(0)[0].as_py()
            full = rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES
            if waiting and (full or (first != after and not gaps)):
                yield pa.concat_batches(waiting)
                waiting, rows, size = [], 0, 0
            piece = batch.slice(0, 2 * ROW_GROUP_ROWS - rows)
            batch = batch.slice(piece.num_rows)
            waiting.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
            after = piece.column(0)[-1].as_py() + 1
    if waiting:
        yield pa.concat_batches(waiting)


def writer(sink: object, compression: str) -> pq.ParquetWriter:
    """Return a writer of Parquet that any reader can read, with all checksums."""
    return pq.ParquetWriter(
        sink,
        SCHEMA,
        compression=compression,
        use_dictionary=[name for name in SCHEMA.names if name not in _DISTINCT] + _PAIRS,
        column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
        write_statistics=_MEASURED,
        write_page_checksum=True,
        sorting_columns=[pq.SortingColumn(0)],
    )


class _Sink(Appending):
    """The file that pyarrow writes to, with a checksum of what was written since the last cut."""

    def __init__(self, files: Files, path: Path) -> None:
        super().__init__(files, path)
        self._digest = xxh3_64()
        self._held: list[bytes] | None = None

    def write(self, data: bytes) -> int:
        """Write at the end; ignore what pyarrow writes after an error."""
        if self._held is not None:
            self._held.append(bytes(data))
        elif not self.closed:
            super().write(data)
            self._digest.update(data)
        return len(data)

    def cut(self) -> int:
        """Return the checksum of what was written since the last call."""
        checksum = self._digest.intdigest()
        self._digest.reset()
        return checksum

    def hold(self) -> list[bytes]:
        """Collect what is written from now on, instead of writing it."""
        self._held = []
        return self._held

    def finish(self, pieces: Sequence[bytes]) -> None:
        """Write the end of the file, sync and close it."""
        self._files.write(self._descriptor, pieces, self.position)
        self.sync()
        self.close()


def write(files: Files, path: Path, batches: Iterable[pa.RecordBatch], end: int, compression: str) -> None:
    """Write a segment that ends before offset `end`. When this returns it exists and is safe; else it does
    not exist.

    Whatever an interruption leaves behind has a name that ends in .tmp, or belongs to a Parquet file that
    does not exist. It is harmless, and removed at the next attempt.
    """
    temporary = path.with_name(path.name + ".tmp")
    files.remove(temporary)
    sink = _Sink(files, temporary)
    try:
        records, footer = _write_row_groups(sink, batches, end, compression)
        sink.finish([INDEX_HEADER, records.tobytes(), footer])
        write_whole(files, index_of(path), [INDEX_HEADER, records.tobytes()])
        write_whole(files, footer_of(path), [footer])
        files.rename(temporary, path)
    except BaseException:
        sink.close()
        files.remove(temporary)
        raise
    files.sync_folder(path.parent)


def _write_row_groups(
    sink: _Sink, batches: Iterable[pa.RecordBatch], end: int, compression: str
) -> tuple[Records, bytes]:
    """Write all but the end of the file; return the index, and the footer with mark and checksum."""
    parquet = writer(sink, compression)
    try:
        found = [NO_RECORDS]
        sink.cut()
        for batch in row_groups(batches):
            position = sink.position
            parquet.write_table(pa.Table.from_batches([batch]), row_group_size=batch.num_rows)
            size = sink.position - position
            found.append(record_of(batch, position, size, sink.cut(), True))
        held = sink.hold()
        parquet.add_key_value_metadata({_END: str(end)})
        parquet.close()
    except BaseException:
        sink.close()
        parquet.close()
        raise
    footer = b"".join(held)
    return np.concatenate(found), FOOTER_HEADER + xxh3_64_intdigest(footer).to_bytes(8, "little") + footer


def footer_in(raw: bytes) -> bytes | None:
    """Return the footer after its mark and checksum; None if the checksum does not match."""
    footer = raw[_PROOF:]
    checksum = xxh3_64_intdigest(footer).to_bytes(8, "little")
    return footer if raw[:_PROOF] == FOOTER_HEADER + checksum else None


def read_copy(path: Path) -> bytes | None:
    """Return the copy of the footer; None if it is damaged or missing."""
    try:
        return footer_in(footer_of(path).read_bytes())
    except OSError:
        return None


def read_own(file: BinaryIO) -> bytes | None:
    """Return the footer of a Parquet file; None if it is damaged."""
    size = os.fstat(file.fileno()).st_size
    try:
        length = _PROOF + int.from_bytes(os.pread(file.fileno(), 4, max(0, size - 8)), "little") + 8
        return footer_in(os.pread(file.fileno(), length, size - length)) if length <= size else None
    except OSError:
        return None


def read_own_index(file: BinaryIO, footer: bytes, count: int) -> bytes:
    """Return the bytes of the index in a Parquet file, which precede the footer."""
    length = 64 * (count + 1)
    start = os.fstat(file.fileno()).st_size - len(footer) - _PROOF - length
    try:
        return os.pread(file.fileno(), length, max(0, start))
    except OSError:
        return b""


class Contents:
    """The footer and the index of a Parquet segment."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        known, bad = read_index(index_of(path))
        self.footer = read_copy(path) or read_own(file)
        self.metadata: pq.FileMetaData | None = None
        self.records = known
        if self.footer is None:
            self.end = end_of(known, int(path.name[:20]))
            return
        self.metadata = pq.read_metadata(pa.BufferReader(MAGIC + self.footer))
        self.end = int(self.metadata.metadata[_END])
        count = self.metadata.num_row_groups
        if bad or len(known) != count:
            own, _ = proven(read_own_index(file, self.footer, count))
            self.records = _records(self.metadata, np.concatenate([known, own]))


def _records(metadata: pq.FileMetaData, known: Records) -> Records:
    """Return a record for each row group: a known one, or a new one, which is not `synced`."""
    by_position = {int(one["position"]): one for one in known}
    records = np.zeros(metadata.num_row_groups, RECORD)
    for number in range(len(records)):
        group = metadata.row_group(number)
        first, last = group.column(0), group.column(group.num_columns - 1)
        position = first.dictionary_page_offset or first.data_page_offset
        end = (last.dictionary_page_offset or last.data_page_offset) + last.total_compressed_size
        one = by_position.get(position)
        if one is not None and one["length"] == end - position and one["count"] == group.num_rows:
            records[number] = one
            continue
        times = group.column(1).statistics
        start = first.statistics.min
        length = end - position
        records[number] = (start, group.num_rows, times.min_raw, times.max_raw, position, length, 0, 0, 0)
    prove(records)
    return records


class _Window:
    """A part of a file, in memory, in place of the whole file: the bytes that were checked are the bytes that
    are decoded.
    """

    closed = False

    def __init__(self, data: bytes, position: int, size: int) -> None:
        self._data = memoryview(data)
        self._start = position
        self._size = size
        self._at = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset if whence == os.SEEK_SET else self._size + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> memoryview:
        begin = self._at - self._start
        self._at += size
        return self._data[begin : begin + size] if begin >= 0 else memoryview(b"")

    def close(self) -> None:
        pass


class ParquetSegment:
    """Reads a Parquet segment, in any process."""

    def __init__(self, stream: str, path: Path, cache: BatchCache | None = None) -> None:
        self.stream = stream
        self.path = path
        self.base = int(path.name[:20])
        self._known: tuple[Records, int] | None = None
        self._cache = cache or BatchCache()

    @property
    def index(self) -> Path:
        """The index file."""
        return index_of(self.path)

    def _load(self) -> tuple[Records, int]:
        if self._known is None:
            with self.path.open("rb") as file:
                contents = Contents(self.path, file)
            self._known = contents.records, contents.end
        return self._known

    def records(self) -> Records:
        """Return the index: one record a row group."""
        return self._load()[0]

    def reach(self, offset: int) -> int:
        """Return where the segment ends: it was complete when it got its name."""
        return self.end()

    def end(self) -> int:
        """Return the offset after the last message, including messages that were lost before the segment was
        written.
        """
        return self._load()[1]

    def read(
        self, offset: int, stop: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch | Damage]:
        """Yield the record batches with messages from `offset` on and before `stop`, and what is damaged."""
        return self.select(offset, stop, columns)

    def select(
        self, offset: int, stop: int, columns: Sequence[str] | None = None, topics: Topics | None = None
    ) -> Iterator[pa.RecordBatch | Damage | Passed]:
        """Do the same, but skip row groups in which no message has one of the topics; some need not even be
        read.
        """
        with self.path.open("rb") as file:
            contents = Contents(self.path, file)
            records = contents.records
            if contents.metadata is None and not len(records):
                last = max(self.base, stop - 1 if stop < FOREVER else contents.end)
                reason = "its footers and its index are damaged"
                yield Damage(self.stream, self.path.name, self.base, last, reason)
                return
            at = max(0, int(np.searchsorted(records["first"], offset, "right")) - 1)
            for number in range(at, len(records)):
                first, count = int(records["first"][number]), int(records["count"][number])
                if first >= stop:
                    return
                if first + count <= offset:
                    continue
                batch = self._cache.get(self.path.name, number) if columns is None else None
                if batch is None:
                    if topics is not None and not _may_hold(contents, number, topics):
                        yield Passed(first, first + count - 1)
                        continue
                    try:
                        batch = decode(file, contents, number, columns, topics)
                    except Damaged as error:
                        yield Damage(self.stream, self.path.name, first, first + count - 1, str(error))
                        continue
                    if batch is None:
                        yield Passed(first, first + count - 1)
                        continue
                    if columns is None:
                        self._cache.put(self.path.name, number, batch)
                yield cut(batch, first, offset, stop)


def check(file: BinaryIO, one: np.void) -> bytes:
    """Return the bytes of a row group; raise Damaged if they are not what was written."""
    length = int(one["length"])
    try:
        data = os.pread(file.fileno(), length, int(one["position"]))
    except OSError as error:
        raise Damaged(f"a row group cannot be read: {error.strerror}") from None
    if len(data) != length:
        raise Damaged("a row group is cut off")
    if one["synced"] and xxh3_64_intdigest(data) != one["checksum"]:
        raise Damaged("the checksum of a row group is wrong")
    return data


def _may_hold(contents: Contents, number: int, topics: Topics) -> bool:
    """Return whether a row group could have one of these topics, judged by the footer."""
    if contents.metadata is None:
        return True
    statistics = contents.metadata.row_group(number).column(_TOPIC).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    return topics.any_between(statistics.min, statistics.max)


def decode(
    file: BinaryIO,
    contents: Contents,
    number: int,
    wanted: Sequence[str] | None = None,
    topics: Topics | None = None,
) -> pa.RecordBatch | None:
    """Decode a row group; raise Damaged if its bytes are not what was written. HOT.

    Return None if no message has one of the topics: then only the topics are decoded.
    """
    one = contents.records[number]
    metadata = contents.metadata
    data = check(file, one)
    if metadata is None:
        raise Damaged("the footer is damaged, and its copy too")
    try:
        group = metadata.row_group(number)
        absent = _absent(group)
        window = _Window(data, int(one["position"]), os.fstat(file.fileno()).st_size)
        parquet = pq.ParquetFile(
            pa.PythonFile(window, mode="r"),
            metadata=metadata,
            pre_buffer=False,
            page_checksum_verification=not one["synced"],
            read_dictionary=_repeated(group),
        )
        if topics is not None:
            found = parquet.read_row_group(number, ["topic"], use_threads=False).column(0)
            if not topics.any_of(found):
                return None
        fields = list(SCHEMA) if wanted is None else [SCHEMA.field(name) for name in wanted]
        names = [field.name for field in fields if field.name not in absent]
        table = parquet.read_row_group(number, names, use_threads=False)
        columns = [
            pa.nulls(group.num_rows, field.type)
            if field.name in absent
            else _joined(table.column(field.name))
            for field in fields
        ]
        # This also expands dictionaries to texts.
        batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"a row group cannot be decoded: {error}") from None
    offsets = batch.column(0)
    first, count = int(one["first"]), int(one["count"])
    if len(offsets) != count or offsets[0].as_py() != first or offsets[-1].as_py() != first + count - 1:
        raise Damaged("a row group does not hold what the index says")
    return batch


def _joined(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; `combine_chunks` would copy a single chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _repeated(group: pq.RowGroupMetaData) -> list[str]:
    """Return the text columns to decode as dictionaries: with few distinct texts that takes less than half
    the time.
    """
    few = []
    for number, name in _TEXTS.items():
        column = group.column(number)
        start = column.dictionary_page_offset
        if start is not None and column.data_page_offset - start <= _MAX_DICTIONARY_BYTES:
            few.append(name)
    return few


def _absent(group: pq.RowGroupMetaData) -> set[str]:
    """Return the columns without a value in a row group: not decoding them saves a fifth of the time."""
    absent = set(_OPTIONAL)
    for number in range(len(SCHEMA) - len(_OPTIONAL), group.num_columns):
        column = group.column(number)
        statistics = column.statistics
        if statistics is None or statistics.null_count != column.num_values:
            absent.discard(column.path_in_schema.partition(".")[0])
    return absent

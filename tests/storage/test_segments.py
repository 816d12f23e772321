"""Segments in Arrow's format: written rows are read back, even if the end of the file is damaged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.broker.message import Batch, MixedBatch, Properties
from pyrite.journal.decoding import batches_in
from pyrite.journal.encoding import Entry, build
from pyrite.storage import frames
from pyrite.storage.arrow import ArrowSegment, recover
from pyrite.storage.frames import HEADER
from pyrite.storage.index import index_of, read_index
from pyrite.storage.options import StreamOptions
from pyrite.storage.schema import SCHEMA, STORED, plain
from pyrite.storage.segment import BatchCache
from pyrite.storage.segment_writer import SegmentWriter
from pyrite.storage.stream import StreamReader
from tests.storage.samples import FILES, append, read, rows_of, write_segment, write_segments
from tests.support.durable import Machine, OpenFiles

Message = tuple[Any, ...]

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
topics = texts.filter(bool).map(str.encode)
properties = st.none() | st.builds(
    Properties,
    st.sampled_from([None, 0, 1]),
    st.none() | st.integers(0, 2**32 - 1),
    st.none() | texts,
    st.none() | texts,
    st.none() | st.binary(max_size=20),
    st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
)


@st.composite
def alike(draw: st.DrawFn) -> Batch:
    """Messages of one topic and size, as they come over the wire."""
    count, size = draw(st.integers(1, 5)), draw(st.integers(0, 70))
    head = draw(st.integers(0 if count == 1 else 2, 9))
    data = draw(st.binary(min_size=count * (head + size), max_size=count * (head + size)))
    retain, origin = draw(st.booleans()), draw(st.none() | texts)
    qos = draw(st.integers(0, 2))
    return Batch(
        draw(topics), data, qos, retain, draw(properties), None, origin, count, head + size, payload_at=head
    )


@st.composite
def mixed(draw: st.DrawFn) -> Batch:
    """Messages of several topics and sizes, as they come over the wire."""
    data, starts, names, ids_at = b"", [], [], []
    gap = draw(st.sampled_from([0, 2]))
    for name in draw(st.lists(topics, min_size=2, max_size=5)):
        payload = draw(st.binary(max_size=30) | st.binary(min_size=100, max_size=140))
        starts.append(len(data))
        names.append(name)
        rest = 2 + len(name) + gap + len(payload)
        size = bytes([rest]) if rest < 128 else bytes([rest & 127 | 128, rest >> 7])
        data += b"\x30" + size + len(name).to_bytes(2, "big") + name
        ids_at.append(len(data))
        data += bytes(gap) + payload
    return MixedBatch(data, starts, names, ids_at, gap, draw(st.integers(0, 2)), draw(st.none() | texts), 4)


def messages(batches: list[tuple[Batch, int]]) -> list[Message]:
    """Split batches into rows, to compare them."""
    found = []
    for batch, time in batches:
        for part in batch.parts():
            carried = part.properties and tuple(
                getattr(part.properties, name) for name in Properties.__slots__ if name != "encoded"
            )
            if carried == (None, None, None, None, None, ()):
                carried = None  # the same as none at all
            found += [
                (part.topic, payload, part.qos, part.retain, part.origin, carried, time)
                for payload in part.payloads()
            ]
    return found


@given(st.lists(alike() | mixed(), min_size=1, max_size=6), st.integers(0, 2**62))
@settings(max_examples=300, deadline=None)
def test_messages_are_read_as_they_were_written(batches: list[Batch], first: int) -> None:
    entries = [Entry(batch, 1_000 + number, None) for number, batch in enumerate(batches)]
    frame = frames.encode(build(entries, first))
    back = frames.decode(memoryview(b"".join(frame.pieces)))
    back.validate(full=True)
    assert frame.size == sum(map(len, frame.pieces))
    assert back.column(0).to_pylist() == list(range(first, first + sum(batch.count for batch in batches)))
    found = list(batches_in(back))
    assert found[0][1] == first
    assert messages([(batch, time) for batch, _, time in found]) == messages(
        [(entry.batch, entry.timestamp) for entry in entries]
    )


def test_a_large_batch_is_compressed_and_read_back(tmp_path: Path) -> None:
    batch = build([Entry(Batch(b"a", b"x" * 64_000, count=1_000, stride=64), 1, None)], 0)
    frame = frames.encode(batch)
    assert frame.size < 64_000 / 4
    assert frames.decode(memoryview(b"".join(frame.pieces))).equals(plain(batch))


def test_any_arrow_library_reads_a_segment(tmp_path: Path) -> None:
    written = write_segment(tmp_path / "s", 0, 30)
    with pa.OSFile(str(tmp_path / "s" / f"{0:020d}.arrow")) as file, pa.ipc.open_stream(file) as stream:
        stored = list(stream)
    properties = SCHEMA.names[8:]
    offset = 0
    for batch, expected in zip(stored, written, strict=True):
        assert batch.schema.equals(STORED)
        found = [row | (row.pop("properties") or dict.fromkeys(properties)) for row in batch.to_pylist()]
        assert [row.pop("first_offset") for row in found] == [offset] * len(found)
        assert [{"offset": offset + number} | row for number, row in enumerate(found)] == rows_of([expected])
        offset += len(found)


def test_an_active_segment_is_an_arrow_stream(tmp_path: Path) -> None:
    writer = SegmentWriter(FILES, tmp_path, 0)
    written = [append(writer, True) for _ in range(3)]
    with pa.OSFile(str(writer.path)) as file, pa.ipc.open_stream(file) as stream:
        payloads = stream.read_all().column("payload").to_pylist()
    assert payloads == [row["payload"] for row in rows_of(written)]
    writer.close()


def test_reading_begins_and_stops_at_any_offset(tmp_path: Path) -> None:
    rows = rows_of(write_segments(tmp_path / "s", [3, 1, 4], last_sealed=False))
    reader = StreamReader(tmp_path / "s")
    assert (reader.first, reader.end) == (0, len(rows))
    for start in range(len(rows) + 1):
        for stop in (start, start + 1, start + 9, len(rows)):
            pieces = [piece for piece in reader.read(start, stop) if isinstance(piece, pa.RecordBatch)]
            assert rows_of(pieces) == rows[start:stop]


def test_the_offset_at_a_time_is_found(tmp_path: Path) -> None:
    rows = rows_of(write_segments(tmp_path / "s", [3, 1, 4], last_sealed=False))
    reader = StreamReader(tmp_path / "s")
    times = [int(row["timestamp"].timestamp() * 1e6 + 0.5) for row in rows]
    for time in (0, *times, times[-1] + 1):
        assert reader.offset_at(time) == sum(each < time for each in times)


# The end of the last segment


def sizes(path: Path) -> tuple[int, int]:
    """Return where the last batch begins, and where it ends."""
    records, _ = read_index(index_of(path))
    return int(records["position"][-1]), int(records["position"][-1] + records["length"][-1])


def go_on(folder: Path, path: Path) -> list[pa.RecordBatch]:
    """Recover a segment and write one more batch to it, as a broker does that starts again."""
    found = recover(FILES, folder.name, path)
    assert found.damages == []
    assert not found.sealed
    writer = SegmentWriter(FILES, folder, 0, found.records)
    written = append(writer, True, seed=99)
    writer.close()
    return [written]


def test_a_truncated_batch_is_dropped_and_writing_continues(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    path = folder / f"{0:020d}.arrow"
    written = write_segment(folder, 0, 4, sealed=False)
    begin, end = sizes(path)
    whole, index = path.read_bytes(), index_of(path).read_bytes()
    for size in range(begin, end):
        path.write_bytes(whole[:size])
        index_of(path).write_bytes(index[:-64])  # a record is written after its batch
        assert recover(FILES, "s", path).dropped == len(whole[begin:size].rstrip(b"\0"))
        assert path.stat().st_size == begin
        path.write_bytes(whole[:size])
        more = go_on(folder, path)
        assert read(folder) == (rows_of(written[:-1] + more), [])


def test_a_truncated_head_is_rewritten(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    path = folder / f"{0:020d}.arrow"
    for size in range(len(HEADER) + 1):
        write_segment(folder, 0, 0, sealed=False)
        path.write_bytes(HEADER[:size])
        more = go_on(folder, path)
        assert read(folder) == (rows_of(more), [])
        path.unlink()
        index_of(path).unlink()


@pytest.mark.parametrize(
    "tail",
    [bytes(4096), b"\xff" * 100, HEADER, frames.BEGIN, b"x" * 100 + bytes(4096)],
    ids=["zeros", "ones", "a head", "a mark", "rubbish and room for more"],
)
def test_garbage_after_the_last_batch_is_dropped(tmp_path: Path, tail: bytes) -> None:
    folder = tmp_path / "s"
    path = folder / f"{0:020d}.arrow"
    written = write_segment(folder, 0, 4, sealed=False)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(tail)
    assert recover(FILES, "s", path).dropped == len(tail.rstrip(b"\0")), "of zeros nothing is said"
    assert path.stat().st_size == size
    more = go_on(folder, path)
    assert read(folder) == (rows_of(written + more), [])


def test_a_missing_or_truncated_index_is_rebuilt(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    path = folder / f"{0:020d}.arrow"
    written = write_segment(folder, 0, 4, sealed=False)
    whole, index = path.read_bytes(), index_of(path).read_bytes()
    for size in range(-1, len(index)):
        path.write_bytes(whole)
        index_of(path).unlink()
        if size >= 0:
            index_of(path).write_bytes(index[:size])
        more = go_on(folder, path)
        assert read(folder) == (rows_of(written + more), [])
        assert len(read_index(index_of(path))[0]) == 5


def test_a_sealed_segment_with_a_short_index_is_read_completely(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    written = write_segments(folder, [4, 2])
    index = index_of(folder / f"{0:020d}.arrow")
    raw = index.read_bytes()
    for size in range(0, len(raw), 32):
        index.write_bytes(raw[:size])
        assert read(folder) == (rows_of(written), [])


def test_an_abandoned_segment_with_a_short_index_is_read_completely(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    written = write_segment(folder, 0, 4, sealed=False)
    index = index_of(folder / f"{0:020d}.arrow")
    reader = StreamReader(folder)
    assert reader.end == written[-1].column(0)[-1].as_py() + 1
    index.write_bytes(index.read_bytes()[:-128])
    written += write_segment(folder, written[-1].column(0)[-1].as_py() + 1, 2)
    assert rows_of([piece for piece in reader.read(0) if isinstance(piece, pa.RecordBatch)]) == rows_of(
        written
    )


def test_unsynced_rows_may_be_lost_although_the_index_has_them(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    path = folder / f"{0:020d}.arrow"
    written = write_segment(folder, 0, 4, sealed=False, synced=False)
    begin, end = sizes(path)
    whole, index = path.read_bytes(), index_of(path).read_bytes()
    for size in range(begin, end, 7):
        path.write_bytes(whole[:size])
        index_of(path).write_bytes(index)
        assert read(folder)[0] == rows_of(written[:-1])
        assert read(folder) != (rows_of(written[:-1]), [])  # readers before recovery are told
        assert read(folder) == read(folder)
        more = go_on(folder, path)
        assert read(folder) == (rows_of(written[:-1] + more), [])


def test_lost_synced_rows_are_reported_and_their_offsets_are_not_reused(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    path = folder / f"{0:020d}.arrow"
    written = write_segment(folder, 0, 4, sealed=False)
    begin, end = sizes(path)
    whole = path.read_bytes()
    lost = written[-1].column(0)
    for size in range(begin, end, 7):
        path.write_bytes(whole[:size])
        found = recover(FILES, "s", path)
        assert [(each.first, each.last) for each in found.damages] == [(lost[0].as_py(), lost[-1].as_py())]
        assert found.sealed
        assert int(found.records["first"][-1] + found.records["count"][-1]) == lost[-1].as_py() + 1
        rows, damages = read(folder)
        assert rows == rows_of(written[:-1])
        assert [(each.first, each.last) for each in damages] == [(lost[0].as_py(), lost[-1].as_py())]


def test_rows_written_during_a_read_are_seen(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    writer = SegmentWriter(FILES, folder, 0)
    reader = StreamReader(folder)
    written: list[pa.RecordBatch] = []
    for _ in range(5):
        assert reader.end == writer.next_offset
        written.append(append(writer, False))
        assert rows_of(list(reader.read(0))) == rows_of(written)
    writer.close()


def test_cached_batches_are_released_when_no_reader_uses_them() -> None:
    decoded = BatchCache()
    batch = pa.RecordBatch.from_pydict({"a": [1]})
    decoded.put("s", 1, batch)
    decoded.forget_unused()
    assert decoded.get("s", 1) is batch
    decoded.forget_unused()
    assert decoded.get("s", 1) is batch
    decoded.forget_unused()
    decoded.forget_unused()
    assert decoded.get("s", 1) is None


def test_a_segment_without_its_index_is_read(tmp_path: Path) -> None:
    written = write_segment(tmp_path / "s", 7, 4)
    path = tmp_path / "s" / f"{7:020d}.arrow"
    index_of(path).unlink()
    segment = ArrowSegment("s", path)
    assert rows_of(list(segment.read(7, 10_000))) == rows_of(written)
    assert segment.end() == written[-1].column(0)[-1].as_py() + 1


def test_opening_a_large_log_reads_only_its_end(folder: Path) -> None:
    """Sealed segments of a GiB each, and the start of the last, hold zeros only: a start skips them."""
    machine = Machine(folder, [StreamOptions(segment_bytes=6_000)], files=lambda _: OpenFiles())
    client = machine.core.connect("c")
    for _ in range(11):
        client.publish("a", b"x" * 7_000, qos=1)
    machine.stop()
    machine.streams = [StreamOptions(segment_bytes=1 << 40)]
    machine.start()
    client = machine.core.connect("c")
    for _ in range(20):
        client.publish("a", os.urandom(1 << 20), qos=1)
    machine.stop()
    *sealed, last = sorted(machine.data.glob("streams/default/*.arrow"))
    assert len(sealed) == 10
    for path in sealed:
        os.truncate(path, 0)
        os.truncate(path, 1 << 30)
    with last.open("r+b") as file:
        file.seek(10_000)
        file.write(bytes(8 << 20))
    before = _read_so_far()
    machine.start()
    read = _read_so_far() - before
    opened = next(iter(machine.journal.log.writers.values())).opened
    assert (opened.segments, opened.end, opened.damages) == (11, 31, [])
    assert opened.size > 10e9
    assert read < 2_000_000, "but for the end, which is mapped"
    machine.core.connect("c").publish("a", b"x", qos=1)
    machine.abandon()


def _read_so_far() -> int:
    """Return how many bytes this process has read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar: ")).split()[1])

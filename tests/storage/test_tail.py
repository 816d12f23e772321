"""The tail of a segment: rows that are not in a record batch yet."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.journal.verify import verify
from pyrite.storage import segment_writer
from pyrite.storage.arrow import ArrowSegment, recover, size_of
from pyrite.storage.index import read_index
from pyrite.storage.segment import Damage
from pyrite.storage.segment_writer import SegmentWriter
from pyrite.storage.stream import StreamReader
from pyrite.storage.tail import HEAD_BYTES, TAIL_BYTES, Row, batch_of, pack_record, tail_of
from pyrite.storage.tiering import to_parquet
from pyrite.storage.wanted import Topics
from tests.storage.samples import FILES, START, append, no_damage, rows_of
from tests.support.durable import quick_folder

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)
optional = st.none() | texts
properties = st.none() | st.tuples(
    st.sampled_from([None, 0, 1]),
    st.none() | st.integers(0, 2**32 - 1),
    optional,
    optional,
    st.none() | st.binary(max_size=9),
    st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
)
some_rows = st.lists(
    st.builds(
        Row,
        st.integers(START, START + 9),
        texts.filter(bool).map(str.encode),
        st.binary(max_size=99),
        st.integers(0, 2),
        st.booleans(),
        optional,
        st.none() | st.integers(1, 65_535),
        properties,
    ),
    min_size=1,
    max_size=5,
)


def row(number: int, payload: bytes = b"x" * 20) -> Row:
    """Return a row, the topic of which tells its number."""
    return Row(START + number, b"t/%d" % number, payload, 1, False, "ann")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "streams" / "s"
    folder.mkdir(parents=True)
    return folder


def read(folder: Path) -> list[str]:
    """Return the topics of all messages, whose offsets must be consecutive; fail on damage."""
    pieces = list(StreamReader(folder).read(0))
    assert not [one for one in pieces if isinstance(one, Damage)]
    rows = rows_of([one for one in pieces if not isinstance(one, Damage)])
    assert [one["offset"] for one in rows] == list(range(len(rows)))
    return [one["topic"] for one in rows]


def topics(count: int, first: int = 0) -> list[str]:
    return [f"t/{number}" for number in range(first, first + count)]


def write_rows(writer: SegmentWriter, count: int, sync: bool = True) -> None:
    """Append rows one by one, numbered by their offsets."""
    for _ in range(count):
        writer.append_rows([row(writer.next_offset)], writer.next_offset, sync)


@settings(max_examples=100, deadline=None)
@given(st.lists(some_rows, min_size=1, max_size=4))
def test_rows_are_read_alike_from_the_tail_and_after_a_fold(appended: list[list[Row]]) -> None:
    with quick_folder() as folder:
        writer = SegmentWriter(FILES, folder, 7)
        for rows in appended:
            writer.append_rows(rows, writer.next_offset, True)
        expected = batch_of([one for rows in appended for one in rows], 7).to_pylist()
        assert rows_of(list(StreamReader(folder).read(0))) == expected
        assert not len(read_index(folder / f"{7:020d}.arrow.index")[0])
        writer.fold()
        assert rows_of(list(StreamReader(folder).read(0))) == expected
        assert len(read_index(folder / f"{7:020d}.arrow.index")[0]) == 1
        writer.close()


def test_a_few_messages_at_a_time_take_less_than_250_bytes_each(folder: Path) -> None:
    writer = SegmentWriter(FILES, folder, 0)
    random = Random(1)
    count = 10_000
    for number in range(count):
        topic = b"site/%d/temperature" % (number % 100)
        writer.append_rows(
            [Row(START + number, topic, random.randbytes(112), 1, False, "device-17")], number, True
        )
    assert sum(path.stat().st_size for path in folder.iterdir()) / count < 250
    writer.close()


def test_a_large_group_folds_the_tail_in_front_of_it(folder: Path) -> None:
    writer = SegmentWriter(FILES, folder, 0)
    write_rows(writer, 3)
    batch = append(writer, True)
    offsets = [one["offset"] for one in rows_of(list(StreamReader(folder).read(0)))]
    assert offsets == list(range(3 + batch.num_rows))
    write_rows(writer, 2)
    assert StreamReader(folder).end == 5 + batch.num_rows
    writer.seal()
    assert StreamReader(folder).end == 5 + batch.num_rows
    assert not tail_of(writer.path).exists()


@pytest.mark.parametrize("before", [0, 2])
def test_rows_after_skipped_offsets_have_their_own(folder: Path, before: int) -> None:
    writer = SegmentWriter(FILES, folder, 0)
    write_rows(writer, before)
    writer.append_rows([row(7), row(8)], 7, True)
    expected = [*range(before), 7, 8]
    assert [one["offset"] for one in rows_of(list(StreamReader(folder).read(0)))] == expected
    copy = crash(folder)
    assert go_on(copy).next_offset == 9
    assert [one["offset"] for one in rows_of(list(StreamReader(copy).read(0)))] == expected
    writer.close()


def test_a_full_tail_is_folded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "MAX_TAIL_ROWS", 4)
    writer = SegmentWriter(FILES, folder, 0)
    write_rows(writer, 9)
    assert [int(one["count"]) for one in read_index(ArrowSegment("s", writer.path).index)[0]] == [4, 4]
    assert read(folder) == topics(9)
    large = [row(9, bytes(TAIL_BYTES // 2 - HEAD_BYTES)), row(10), row(11)]
    for one in large:
        writer.append_rows([one], writer.next_offset, True)
    assert read(folder) == topics(12)
    writer.close()


def test_an_old_tail_is_folded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SegmentWriter(FILES, folder, 0)
    write_rows(writer, 3)
    writer.fold_if_due()
    assert not len(read_index(ArrowSegment("s", writer.path).index)[0])
    monkeypatch.setattr(segment_writer, "MAX_TAIL_AGE", 0.0)
    writer.fold_if_due()
    assert len(read_index(ArrowSegment("s", writer.path).index)[0]) == 1
    assert read(folder) == topics(3)
    writer.close()


def crash(folder: Path) -> Path:
    """Return a copy of the folder as the end of a process leaves it."""
    copy = folder.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    return copy


def go_on(folder: Path) -> SegmentWriter:
    """Recover the only segment of a folder."""
    (path,) = folder.glob("*.arrow")
    return SegmentWriter(FILES, folder, int(path.stem), recover(FILES, "s", path).records)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("batches", [0, 1])
def test_a_tail_that_a_crash_leaves_is_folded(folder: Path, sync: bool, batches: int) -> None:
    writer = SegmentWriter(FILES, folder, 0)
    write_rows(writer, 3 * batches, sync)
    writer.fold()
    write_rows(writer, 4, sync)
    copy = crash(folder)
    again = go_on(copy)
    assert again.next_offset == 4 + 3 * batches
    assert not tail_of(again.path).exists()
    write_rows(again, 1, sync)
    assert read(copy) == topics(5 + 3 * batches)
    again.close()
    writer.close()


def test_rows_of_an_earlier_round_are_not_read_as_new(folder: Path) -> None:
    writer = SegmentWriter(FILES, folder, 0)
    write_rows(writer, 9)
    writer.fold()
    write_rows(writer, 2)
    copy = crash(folder)
    assert read(copy) == topics(11)
    go_on(copy).close()
    assert read(copy) == topics(11)
    writer.close()


def test_a_tail_whose_rows_were_folded_is_ignored(folder: Path) -> None:
    """A crash between a fold and the new head."""
    writer = SegmentWriter(FILES, folder, 0)
    write_rows(writer, 3)
    before = tail_of(writer.path).read_bytes()
    writer.fold()
    copy = crash(folder)
    tail_of(copy / writer.path.name).write_bytes(before)
    assert read(copy) == topics(3)
    assert verify(folder.parents[1]) == []
    go_on(copy).close()
    assert read(copy) == topics(3)
    writer.close()


def test_records_that_the_head_does_not_cover_are_recovered(folder: Path) -> None:
    """The head is not synced: after a power failure it may be that of an earlier record."""
    writer = SegmentWriter(FILES, folder, 0)
    write_rows(writer, 2)
    head = tail_of(writer.path).read_bytes()[:HEAD_BYTES]
    write_rows(writer, 3)
    copy = crash(folder)
    tail = tail_of(copy / writer.path.name)
    for damaged in (head, bytes(HEAD_BYTES)):
        tail.write_bytes(damaged + tail.read_bytes()[HEAD_BYTES:])
        again = Path(shutil.copytree(copy, folder.parent / f"copy-{damaged[0]}"))
        go_on(again).close()
        assert read(again) == topics(5)
    writer.close()


def test_a_record_that_was_never_finished_is_dropped(folder: Path) -> None:
    writer = SegmentWriter(FILES, folder, 0)
    write_rows(writer, 3)
    copy = crash(folder)
    record = pack_record([row(3)], 3)
    tail = tail_of(copy / writer.path.name)
    used = size_of(writer.path) - writer.path.stat().st_size + HEAD_BYTES
    data = tail.read_bytes()
    tail.write_bytes(data[:used] + record[:-1] + data[used + len(record) - 1 :])
    again = go_on(copy)
    assert again.damages == []
    assert again.next_offset == 3
    again.close()
    assert read(copy) == topics(3)
    writer.close()


@pytest.mark.parametrize("number", range(4))
def test_a_damaged_record_is_reported_and_loses_only_its_messages(folder: Path, number: int) -> None:
    writer = SegmentWriter(FILES, folder, 0)
    write_rows(writer, 4)
    copy = crash(folder)
    tail = tail_of(copy / writer.path.name)
    data = bytearray(tail.read_bytes())
    at = data.find(b"t/%d" % number)
    data[at] ^= 1
    tail.write_bytes(data)
    lost = [Damage("copy", tail.name, number, number, "a record of the tail is damaged")]
    assert [one for one in StreamReader(copy).read(0) if isinstance(one, Damage)] == lost
    assert [one for one in verify(folder.parents[1]) if one.stream == "copy"] == lost
    again = go_on(copy)
    assert again.damages == lost
    assert again.next_offset == 4, "the offset is not used again"
    again.close()
    rows = rows_of([one for one in StreamReader(copy).read(0) if isinstance(one, pa.RecordBatch)])
    assert [one["offset"] for one in rows] == [one for one in range(4) if one != number]
    assert tail.with_name(tail.name + ".damaged").read_bytes() == bytes(data), "it is kept"
    writer.close()


def test_every_flipped_bit_of_a_tail_is_reported_or_changes_nothing(folder: Path) -> None:
    writer = SegmentWriter(FILES, folder, 0)
    write_rows(writer, 3)
    copy = crash(folder)
    tail = tail_of(copy / writer.path.name)
    good = tail.read_bytes()
    used = size_of(writer.path) - writer.path.stat().st_size + HEAD_BYTES
    whole = rows_of(list(StreamReader(copy).read(0)))
    for bit in range(8 * (used + 32)):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        tail.write_bytes(data)
        pieces = list(StreamReader(copy).read(0))
        damages = [one for one in pieces if isinstance(one, Damage) and one.first >= 0]
        rows = rows_of([one for one in pieces if isinstance(one, pa.RecordBatch)])
        lost = {offset for one in damages for offset in range(one.first, one.last + 1)}
        assert rows == [one for one in whole if one["offset"] not in lost], bit
        assert len(lost) <= 1, bit
    writer.close()


def test_a_refused_record_is_never_read(folder: Path) -> None:
    class Failing(type(FILES)):  # type: ignore[misc]
        fails = False

        def sync(self, descriptor: int) -> None:
            if self.fails:
                raise OSError(5, "Input/output error")

    files = Failing()
    writer = SegmentWriter(files, folder, 0)
    write_rows(writer, 2)
    files.fails = True
    with pytest.raises(OSError, match="Input"):
        write_rows(writer, 1)
    files.fails = False
    with pytest.raises(OSError, match="Input"):
        writer.sync()
    assert read(folder) == topics(2)
    copy = crash(folder)
    again = go_on(copy)
    assert again.next_offset == 2
    again.close()
    writer.abandon()


def test_the_tail_of_an_abandoned_segment_goes_to_parquet_with_it(folder: Path) -> None:
    writer = SegmentWriter(FILES, folder, 0)
    write_rows(writer, 2)
    writer.fold()
    write_rows(writer, 3)
    writer.abandon()
    SegmentWriter(FILES, folder, 5).close()
    assert read(folder) == topics(5)
    to_parquet(FILES, "s", writer.path, "zstd", no_damage)
    assert sorted(path.name for path in folder.iterdir() if "tail" in path.name) == []
    assert read(folder) == topics(5)


def test_a_removed_tail_loses_nothing(folder: Path) -> None:
    writer = SegmentWriter(FILES, folder, 0)
    write_rows(writer, 3)
    tail_of(writer.path).unlink()
    writer.append_rows([row(3)], 3, True)
    assert read(folder) == topics(4)
    write_rows(writer, 1)
    tail_of(writer.path).rename(folder / "moved")
    writer.fold_if_due()
    assert read(folder) == topics(5)
    writer.close()


def test_the_size_of_a_segment_excludes_preallocated_space(folder: Path) -> None:
    writer = SegmentWriter(FILES, folder, 0)
    before = size_of(writer.path)
    write_rows(writer, 1)
    assert 20 < size_of(writer.path) - before < 200
    writer.close()


def test_a_filtered_read_skips_a_tail_without_its_topics(folder: Path) -> None:
    writer = SegmentWriter(FILES, folder, 0)
    write_rows(writer, 5)
    found = list(StreamReader(folder).select(0, topics=Topics([b"other"])))
    assert [(one.first, one.last) for one in found] == [(0, 4)]
    (batch,) = StreamReader(folder).select(2, 4, ["offset", "topic"], Topics([b"t/3"]))
    assert isinstance(batch, pa.RecordBatch)
    assert batch.to_pydict() == {"offset": [2, 3], "topic": ["t/2", "t/3"]}
    writer.close()


def test_readers_find_every_message_once_while_the_tail_is_written_and_folded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "MAX_TAIL_ROWS", 7)
    writer = SegmentWriter(FILES, folder, 0)
    count = 3_000
    wrong: list[object] = []

    def offsets(pieces: Iterator[object]) -> Sequence[int]:
        found: list[int] = []
        for piece in pieces:
            if not isinstance(piece, pa.RecordBatch):
                wrong.append(piece)
                continue
            found += piece.column(0).to_pylist()
        return found

    def follow() -> None:
        reader = StreamReader(folder)
        at = 0
        while at < count and not wrong:
            end = reader.end
            found = offsets(reader.read(at, end))
            if list(found) != list(range(at, end)):
                wrong.append((at, end, found))
            at = end

    threads = [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    write_rows(writer, count, False)
    for thread in threads:
        thread.join()
    assert wrong == []
    writer.close()

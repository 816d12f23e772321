"""Segments become Parquet, and small ones become one: at no moment is a message missing or there twice."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.storage import parquet, segment, tiering
from pyrite.storage.arrow import ArrowSegment
from pyrite.storage.files import Files
from pyrite.storage.index import index_of, read_index
from pyrite.storage.parquet import ParquetSegment
from pyrite.storage.query import FOREVER
from pyrite.storage.schema import SCHEMA
from pyrite.storage.segment import Damage
from pyrite.storage.stream import StreamReader, chosen
from tests.storage.samples import (
    FILES,
    Crash,
    Rows,
    convert,
    crashes,
    no_damage,
    read,
    rows_of,
    without,
    write_segment,
    write_segments,
)


@pytest.fixture
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small file has several."""
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 20)


def segments(folder: Path) -> list[ParquetSegment]:
    found = StreamReader(folder).segments()
    return [segment for segment in found if isinstance(segment, ParquetSegment)]


def merge(folder: Path, files: Files = FILES) -> Path | None:
    return tiering.merge(files, segments(folder), "zstd", no_damage)


# Writing


def test_parquet_holds_the_rows_of_the_segment(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    rows = rows_of(write_segments(folder, [30, 20], last_sealed=False))
    (path,) = convert(folder, f"{0:020d}.arrow")
    assert read(folder) == (rows, [])
    assert sorted(each.name for each in folder.iterdir()) == sorted(
        [path.name, f"{path.name}.index", f"{path.name}.footer"]
        + [each.name for each in folder.glob("*.arrow*")]
    )
    assert not (folder / f"{0:020d}.arrow").exists()


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "lz4", "none"])
def test_any_parquet_library_reads_it(tmp_path: Path, compression: str) -> None:
    folder = tmp_path / "s"
    rows = rows_of(write_segments(folder, [30]))
    path = tiering.to_parquet(FILES, "s", folder / f"{0:020d}.arrow", compression, no_damage)
    table = pq.read_table(path, page_checksum_verification=True)
    assert table.schema.equals(SCHEMA)
    assert table.to_pylist() == rows
    column = pq.read_metadata(path).row_group(0).column(3)
    assert column.compression == ("UNCOMPRESSED" if compression == "none" else compression.upper())


@pytest.mark.parametrize("little", [64 * 1024, 0], ids=["once each", "once a message"])
def test_texts_are_read_with_and_without_dictionaries(
    tmp_path: Path, little: int, monkeypatch: pytest.MonkeyPatch, small_row_groups: None
) -> None:
    """Topics and clients, some of which are not there; as a reader of a few columns wants them, too."""
    monkeypatch.setattr(parquet, "_MAX_DICTIONARY_BYTES", little)
    folder = tmp_path / "s"
    rows = rows_of(write_segments(folder, [30]))
    segment = ParquetSegment("s", convert(folder)[0])
    assert {row["client_id"] for row in rows} == {None, "ann", "bob"}
    for names in (None, ["offset", "topic"], ["offset", "client_id"]):
        batches = [piece for piece in segment.read(0, FOREVER, names) if isinstance(piece, pa.RecordBatch)]
        found = [row for batch in batches for row in batch.to_pylist()]
        assert found == [{name: row[name] for name in names or row} for row in rows]
        schema = pa.schema([SCHEMA.field(name) for name in names or SCHEMA.names])
        assert all(batch.schema.equals(schema) for batch in batches)


def test_row_groups_have_statistics(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    rows = rows_of(write_segments(folder, [30]))
    group = pq.read_metadata(convert(folder)[0]).row_group(0)
    assert (group.column(0).statistics.min, group.column(0).statistics.max) == (0, len(rows) - 1)
    assert group.column(1).statistics.max == rows[-1]["timestamp"]
    assert group.column(2).statistics.max == "grün/ß"


@given(st.lists(st.integers(1, 40), max_size=40), st.booleans())
@settings(max_examples=50, deadline=None)
def test_row_groups_have_the_configured_size_and_no_gaps(counts: list[int], gaps: bool) -> None:
    offset, batches = 0, []
    for number, count in enumerate(counts):
        offset += 3 * (number % 7 == 5)
        offsets = list(range(offset, offset + count))
        batches.append(pa.record_batch({"offset": offsets}))
        offset += count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "ROW_GROUP_ROWS", 30)
        groups = [group.column(0).to_pylist() for group in parquet.row_groups(batches, gaps)]
    assert [each for group in groups for each in group] == [
        each for batch in batches for each in batch.column(0).to_pylist()
    ]
    for number, group in enumerate(groups):
        assert len(group) <= 60
        ends_at_gap = number + 1 < len(groups) and groups[number + 1][0] != group[-1] + 1
        assert len(group) >= 30 or number == len(groups) - 1 or (ends_at_gap and not gaps)
        assert gaps or group == list(range(group[0], group[-1] + 1))


def test_a_row_group_is_bounded_by_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 10_000)
    batches = [pa.record_batch({"offset": [number], "payload": [bytes(4_000)]}) for number in range(9)]
    assert [group.num_rows for group in parquet.row_groups(batches)] == [3, 3, 3]


@pytest.mark.usefixtures("small_row_groups")
def test_reading_parquet_begins_and_stops_at_any_offset(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    rows = rows_of(write_segments(folder, [9, 4]))
    convert(folder)
    reader = StreamReader(folder)
    assert len(segments(folder)[0].records()) > 2
    assert (reader.first, reader.end) == (0, len(rows))
    for start in range(len(rows) + 1):
        for stop in (start, start + 1, start + 25, len(rows)):
            assert rows_of(list(reader.read(start, stop))) == rows[start:stop]
    times = [int(row["timestamp"].timestamp() * 1e6 + 0.5) for row in rows]
    for time in (0, *times, times[-1] + 1):
        assert reader.offset_at(time) == sum(each < time for each in times)


@pytest.mark.usefixtures("small_row_groups")
def test_small_reads_decode_a_row_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "s"
    rows = rows_of(write_segments(folder, [20]))
    convert(folder)
    decoded = []
    real = parquet.decode

    def counted(*arguments: Any) -> pa.RecordBatch:
        decoded.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(parquet, "decode", counted)
    reader = StreamReader(folder)
    found: Rows = []
    while len(found) < len(rows):
        found += next(iter(reader.read(len(found), len(found) + 3))).to_pylist()  # type: ignore[union-attr]
    assert found == rows
    assert len(decoded) == len(segments(folder)[0].records())


def test_the_cache_of_row_groups_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "MAX_CACHE_BYTES", 3_500)
    batches = [pa.record_batch({"payload": [bytes(1_000)]}) for _ in range(5)]
    kept = segment.BatchCache()
    for number, batch in enumerate(batches):
        kept.put("a", number, batch)
        assert kept.get("a", 0 if number < 4 else 4) is not None
    assert [number for number in range(5) if kept.get("a", number) is not None] == [0, 3, 4]


def test_new_files_are_durable_before_the_old_one_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    write_segments(folder, [5])
    done: list[tuple[str, str]] = []

    class Noted(Files):
        def open(self, path: Path) -> int:
            self.paths = {**getattr(self, "paths", {}), (number := super().open(path)): path.name}
            return number

        def sync(self, descriptor: int) -> None:
            done.append(("sync", self.paths[descriptor]))

        def sync_folder(self, path: Path) -> None:
            done.append(("sync folder", path.name))

        def rename(self, old: Path, new: Path) -> None:
            done.append(("rename", new.name))
            super().rename(old, new)

        def remove(self, path: Path) -> None:
            if path.exists():
                done.append(("remove", path.name))
            super().remove(path)

    name = f"{0:020d}"
    tiering.to_parquet(Noted(), "s", folder / f"{name}.arrow", "zstd", no_damage)
    assert done == [
        ("sync", f"{name}.parquet.tmp"),
        ("sync", f"{name}.parquet.index.tmp"),
        ("rename", f"{name}.parquet.index"),
        ("sync", f"{name}.parquet.footer.tmp"),
        ("rename", f"{name}.parquet.footer"),
        ("rename", f"{name}.parquet"),
        ("sync folder", "s"),
        ("remove", f"{name}.arrow"),
        ("remove", f"{name}.arrow.index"),
        ("sync folder", "s"),
    ]


def test_an_empty_segment_is_not_converted(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    write_segment(folder, 7, 0)
    path = folder / f"{7:020d}.arrow"
    assert tiering.to_parquet(FILES, "s", path, "zstd", no_damage) == path
    assert path.exists()


def test_a_full_disk_leaves_the_old_segment_and_nothing_else(tmp_path: Path) -> None:
    class Full(type(FILES)):  # type: ignore[misc]
        def write(self, descriptor: int, pieces: Sequence[bytes | memoryview], at: int = -1) -> None:
            super().write(descriptor, pieces, at)
            raise OSError(28, "No space left on device")

    folder = tmp_path / "s"
    rows = rows_of(write_segments(folder, [5]))
    before = sorted(folder.iterdir())
    with pytest.raises(OSError, match="No space left"):
        tiering.to_parquet(Full(), "s", folder / f"{0:020d}.arrow", "zstd", no_damage)
    assert sorted(folder.iterdir()) == before
    assert read(folder) == (rows, [])


def test_rows_that_the_next_segment_repeats_are_left_out(tmp_path: Path) -> None:
    """As it happens when a batch was written but could not be synced, and was written again elsewhere."""
    folder = tmp_path / "s"
    first = write_segment(folder, 0, 4, sealed=False)
    base = first[-1].column(0)[0].as_py()
    index = index_of(folder / f"{0:020d}.arrow")
    index.write_bytes(index.read_bytes()[:-64])
    second = write_segment(folder, base, 3)
    rows = rows_of(first[:-1] + second)
    assert read(folder) == (rows, [])
    tiering.to_parquet(FILES, "s", folder / f"{0:020d}.arrow", "zstd", no_damage)
    assert read(folder) == (rows, [])
    assert pq.read_table(folder / f"{0:020d}.parquet").num_rows == base
    assert segments(folder)[0].end() == base


# Damage


def flip(path: Path, position: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0x10
    path.write_bytes(raw)


@pytest.mark.parametrize("which", [0, 2, 5])
def test_a_damaged_batch_is_left_out_and_its_file_kept(tmp_path: Path, which: int) -> None:
    folder = tmp_path / "s"
    written = write_segments(folder, [6, 2])
    path = folder / f"{0:020d}.arrow"
    records, _ = read_index(index_of(path))
    flip(path, int(records["position"][which]) + 300)
    raw = path.read_bytes()
    damages: list[Damage] = []
    parquet_path = tiering.to_parquet(FILES, "s", path, "zstd", damages.append)
    lost = written[which].column(0)
    assert [(each.first, each.last) for each in damages] == [(lost[0].as_py(), lost[-1].as_py())]
    assert read(folder) == (without(rows_of(written), damages), [])
    assert (folder / f"{0:020d}.arrow.damaged").read_bytes() == raw
    assert len(read_index(folder / f"{0:020d}.arrow.damaged.index")[0]) == 6
    segment = ParquetSegment("s", parquet_path)
    assert segment.end() == written[6].column(0)[0].as_py(), "no offset is given twice"
    for one, group in zip(segment.records(), range(9), strict=False):
        offsets = pq.ParquetFile(parquet_path).read_row_group(group).column(0).to_pylist()
        assert offsets == list(range(one["first"], one["first"] + one["count"]))


def test_a_damaged_segment_is_not_merged(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    rows = rows_of(write_segments(folder, [3, 3, 3]))
    paths = convert(folder)
    flip(paths[1], 100)
    before = sorted(folder.iterdir())
    damages: list[Damage] = []
    assert tiering.merge(FILES, segments(folder), "zstd", damages.append) is None
    assert sorted(folder.iterdir()) == before
    assert [each.file for each in damages] == [paths[1].name]
    assert read(folder)[0] == without(rows, damages)


# Merging


def test_merged_segments_become_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    rows = rows_of(write_segments(folder, [3, 1, 4, 1, 5], last_sealed=False))
    convert(folder, *(each.name for each in sorted(folder.glob("*.arrow"))[:-1]))
    path = merge(folder)
    assert path is not None
    assert [each.path.suffix for each in StreamReader(folder).segments()] == [".parquet", ".arrow"]
    assert read(folder) == (rows, [])
    assert pq.read_metadata(path).num_row_groups == 1
    assert ParquetSegment("s", path).end() == StreamReader(folder).segments()[1].base
    assert {each.name.partition(".parquet")[0] for each in folder.glob("*.parquet*")} == {path.stem}


def test_merged_segments_are_merged_again(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    rows: Rows = []
    for _ in range(4):
        rows += rows_of(write_segment(folder, len(rows), 3))
        convert(folder)
        if len(segments(folder)) > 1:
            merge(folder)
        assert read(folder) == (rows, [])
    assert [each.path.name for each in segments(folder)] == [f"{0:020d}-{len(rows):020d}.parquet"]


def test_of_files_with_the_same_messages_one_is_read() -> None:
    names = [
        f"{0:020d}.parquet",
        f"{0:020d}.arrow",
        f"{0:020d}-{30:020d}.parquet",
        f"{10:020d}.parquet",
        f"{10:020d}-{20:020d}.parquet",
        f"{20:020d}.arrow",
        f"{30:020d}.arrow",
        f"{30:020d}.arrow.index",
        f"{40:020d}.parquet.tmp",
        "other",
    ]
    for seed in range(20):
        random.Random(seed).shuffle(names)
        assert chosen(names) == [f"{0:020d}-{30:020d}.parquet", f"{30:020d}.arrow"]


@pytest.mark.parametrize(
    ("sizes", "eager", "expected"),
    [
        ([10, 10, 10], True, [[0, 1, 2]]),
        ([60, 50, 40, 5, 90, 1], True, [[1, 2, 3], [4, 5]]),
        ([101, 1, 1], True, [[1, 2]]),
        ([10, 10], False, [[0, 1]]),
        ([40, 1, 1], False, [[1, 2]]),
        ([40, 2, 1], False, []),
        ([40, 20, 20], False, [[0, 1, 2]]),
        ([10], True, []),
        ([], False, []),
    ],
)
def test_neighbours_are_chosen_by_size(
    tmp_path: Path, sizes: list[int], eager: bool, expected: list[list[int]]
) -> None:
    found: list[ParquetSegment] = []
    for number, size in enumerate(sizes):
        path = tmp_path / f"{number:020d}.parquet"
        path.write_bytes(bytes(size))
        found.append(ParquetSegment("s", path))
    runs = tiering.mergeable(found, 100, eager=eager)
    assert [[segment.base for segment in run] for run in runs] == expected


def test_neighbours_are_chosen_by_time(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    rows = rows_of(write_segments(folder, [3] * 6))
    convert(folder)
    found = segments(folder)
    span = (rows[-1]["timestamp"] - rows[0]["timestamp"]).total_seconds()
    for part in (0.3, 0.5, 2):
        for run in tiering.mergeable(found, 10**9, span * part, eager=True):
            times = run[-1].records()["latest"][-1] - run[0].records()["earliest"][0]
            assert times <= span * part * 1e6
    assert len(tiering.mergeable(found, 10**9, span * 2, eager=True)[0]) == 6
    assert len(tiering.mergeable(found, 10**9, span / 2, eager=True)) == 2


def test_parquet_segments_are_not_merged_across_an_arrow_segment(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    write_segments(folder, [2] * 5)
    names = [each.name for each in sorted(folder.glob("*.arrow"))]
    convert(folder, *names[:2], *names[3:])
    runs = tiering.mergeable(StreamReader(folder).segments(), 10**9, eager=True)
    assert [len(run) for run in runs] == [2, 2]


def test_messages_are_rewritten_a_logarithmic_number_of_times(tmp_path: Path) -> None:
    """Of 128 small segments, one after the other, each message is rewritten seven times, not sixty."""
    sizes: list[int] = []
    rewritten = 0
    for _ in range(128):
        sizes.append(1)
        found: list[ParquetSegment] = []
        for number, size in enumerate(sizes):
            path = tmp_path / f"{number:020d}.parquet"
            path.write_bytes(bytes(size))
            found.append(ParquetSegment("s", path))
        for run in tiering.mergeable(found, 10**6):
            first, last = run[0].base, run[-1].base
            rewritten += sum(sizes[first : last + 1])
            sizes[first : last + 1] = [sum(sizes[first : last + 1])]
    assert sum(sizes) == 128
    assert len(sizes) <= 8
    assert rewritten <= 8 * 128


# Readers meanwhile


Change = Callable[[Path], None]


def _convert(folder: Path) -> None:
    for path in sorted(folder.glob("*.arrow"))[:-1]:
        convert(folder, path.name)


def _convert_and_merge(folder: Path) -> None:
    _convert(folder)
    merge(folder)


@pytest.mark.parametrize("change", [_convert, _convert_and_merge])
def test_a_conversion_does_not_disturb_a_reader(tmp_path: Path, change: Change) -> None:
    original = tmp_path / "original"
    rows = rows_of(write_segments(original, [3, 2, 3, 2], last_sealed=False))
    for pieces in range(11):
        folder = tmp_path / f"s{pieces}"
        shutil.copytree(original, folder)
        reading = StreamReader(folder).read(0)
        found = [next(reading) for _ in range(pieces)]
        change(folder)
        assert rows_of([*found, *reading]) == rows


def test_a_merge_does_not_disturb_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 20)
    original = tmp_path / "original"
    rows = rows_of(write_segments(original, [6, 6, 6]))
    convert(original)
    for pieces in range(7):
        folder = tmp_path / f"s{pieces}"
        shutil.copytree(original, folder)
        reading = StreamReader(folder).read(0)
        found = [next(reading) for _ in range(pieces)]
        merge(folder)
        assert rows_of([*found, *reading]) == rows


def test_a_listing_made_during_a_change_is_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old name is gone when the list gets there, and where the new one is now it has already been."""
    folder = tmp_path / "s"
    rows = rows_of(write_segments(folder, [3, 2]))
    listdir = os.listdir
    calls: list[Path] = []

    def torn(path: Path) -> list[str]:
        calls.append(path)
        if len(calls) == 1:
            convert(folder, f"{0:020d}.arrow")
            return [name for name in listdir(path) if not name.startswith(f"{0:020d}")]
        return listdir(path)

    monkeypatch.setattr(os, "listdir", torn)
    assert read(folder) == (rows, [])


def test_the_end_is_found_while_the_segment_is_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(write_segments(tmp_path, [3]))
    records = ArrowSegment.records

    def changed(segment: ArrowSegment) -> Any:
        monkeypatch.undo()
        convert(tmp_path)
        return records(segment)

    reader = StreamReader(tmp_path)
    monkeypatch.setattr(ArrowSegment, "records", changed)
    assert reader.end == len(rows)


def test_looking_for_the_end_of_a_removed_stream_terminates(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    write_segments(folder, [3])
    reader = StreamReader(folder)
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError):
        print(reader.end)
    with pytest.raises(FileNotFoundError):
        reader.offset_at(0)


def test_conversions_and_merges_do_not_disturb_many_readers(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    expected = [row["offset"] for row in rows_of(write_segments(folder, [1] * 60, last_sealed=False))]
    finished = threading.Event()
    wrong: list[object] = []

    def follow() -> None:
        reader = StreamReader(folder)
        try:
            while not wrong:
                last_time = finished.is_set()
                offsets: list[int] = []
                for piece in reader.read(0):
                    assert isinstance(piece, pa.RecordBatch)
                    offsets += piece.column(0).to_pylist()
                if offsets != expected:
                    wrong.append(sorted(set(expected) ^ set(offsets)) or "twice")
                if last_time:
                    return
        except BaseException as error:
            wrong.append(error)
            raise

    threads = [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        paths = sorted(folder.glob("*.arrow"))[:-1]
        for path in paths:
            convert(folder, path.name)
            for run in tiering.mergeable(StreamReader(folder).segments(), 10**9):
                tiering.merge(FILES, run, "zstd", no_damage)
    finally:
        finished.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert len(segments(folder)) < 8


# Interruptions


def _to_parquet(files: Files, folder: Path, report: Callable[[Damage], None]) -> None:
    tiering.to_parquet(files, folder.name, folder / f"{0:020d}.arrow", "zstd", report)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_crash_anywhere_in_a_conversion_loses_nothing(tmp_path: Path, damaged: bool) -> None:
    original = tmp_path / "original"
    rows = rows_of(write_segments(original, [3, 2], last_sealed=False))
    if damaged:
        flip(original / f"{0:020d}.arrow", 2_500)
        rows = read(original)[0]
    steps = 0
    for number, files in enumerate(crashes()):
        folder = tmp_path / f"s{number}"
        shutil.copytree(original, folder)
        try:
            _to_parquet(files, folder, lambda _: None)
        except Crash:
            steps += 1
        assert files.open_files == set()
        assert read(folder)[0] == rows
        reported: list[Damage] = []
        tiering.tidy(FILES, folder, reported.append)
        assert read(folder)[0] == rows
        if (folder / f"{0:020d}.arrow").exists():
            _to_parquet(FILES, folder, reported.append)
        assert read(folder) == (rows, [])
        kept = [f"{0:020d}.arrow.damaged", f"{0:020d}.arrow.damaged.index"] if damaged else []
        assert sorted(each.name for each in folder.glob(f"{0:020d}.*")) == [
            *kept,
            f"{0:020d}.parquet",
            f"{0:020d}.parquet.footer",
            f"{0:020d}.parquet.index",
        ]
    assert steps > 15


def test_a_crash_anywhere_in_a_merge_neither_loses_nor_duplicates_messages(tmp_path: Path) -> None:
    original = tmp_path / "original"
    rows = rows_of(write_segments(original, [3, 2, 3, 1], last_sealed=False))
    convert(original, *(each.name for each in sorted(original.glob("*.arrow"))[:-1]))
    steps = 0
    for number, files in enumerate(crashes()):
        folder = tmp_path / f"s{number}"
        shutil.copytree(original, folder)
        try:
            merge(folder, files)
        except Crash:
            steps += 1
        assert files.open_files == set()
        assert read(folder) == (rows, [])
        tiering.tidy(FILES, folder, no_damage)
        assert read(folder) == (rows, [])
        if len(segments(folder)) > 1:
            merge(folder)
        assert read(folder) == (rows, [])
        assert len(list(folder.iterdir())) == 5
    assert steps > 20


def test_tidying_removes_no_file_in_use(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    write_segments(folder, [3, 2, 3, 1], last_sealed=False)
    convert(folder, f"{0:020d}.arrow")
    before = sorted(folder.iterdir())
    (folder / "other").write_bytes(b"")
    (folder / f"{0:020d}.parquet.tmp").write_bytes(b"rubbish")
    (folder / f"{5_000:020d}.parquet.index").write_bytes(b"rubbish")
    tiering.tidy(FILES, folder, no_damage)
    assert sorted(folder.iterdir()) == sorted([*before, folder / "other"])


def test_tidying_removes_an_empty_segment_only_if_its_parquet_file_exists(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    write_segment(folder, 0, 0, sealed=False)
    tiering.tidy(FILES, folder, no_damage)
    assert isinstance(StreamReader(folder).segments()[0], ArrowSegment)


def test_a_segment_is_removed_with_the_files_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    write_segments(folder, [3, 2])
    convert(folder, f"{0:020d}.arrow")
    for one in StreamReader(folder).segments():
        tiering.remove(FILES, one.path)
    assert list(folder.iterdir()) == []


def test_offsets_may_jump(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    written = write_segment(folder, 0, 2) + write_segment(folder, 1_000, 2)
    rows = rows_of(written)
    convert(folder)
    assert read(folder) == (rows, [])
    merge(folder)
    assert read(folder) == (rows, [])
    (segment,) = segments(folder)
    assert len(segment.records()) == 2
    assert rows_of(list(segment.read(500, FOREVER))) == rows_of(written[2:])

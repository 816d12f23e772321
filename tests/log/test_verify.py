"""`verify` says what is damaged, exactly; and of what is whole or just being written, nothing."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from pyrite.log import tiering
from pyrite.log.parquet import footer_of
from pyrite.log.segment import Damage, SegmentWriter, index_of, read_index
from pyrite.log.verify import check_state, streams_in, verify

from .samples import FILES, append, convert, no_damage, write_segment, write_segments


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with the streams a and b, of three segments each."""
    for name in "ab":
        write_segments(tmp_path / "streams" / name, [3, 3, 3], last_sealed=False)
        convert(tmp_path / "streams" / name, f"{0:020d}.arrow")
    return tmp_path


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def segment(data: Path, stream: str, number: int) -> Path:
    found = [*(data / "streams" / stream).glob("*.arrow"), *(data / "streams" / stream).glob("*.parquet")]
    return sorted(found)[number]


def test_what_is_whole_is_not_reported(data: Path) -> None:
    seen: list[tuple[int, int]] = []
    assert verify(data, progress=lambda done, total: seen.append((done, total))) == []
    sizes = [segment(data, stream, number).stat().st_size for stream in "ab" for number in range(3)]
    assert seen == [(sum(sizes[: number + 1]), sum(sizes)) for number in range(6)]


def test_one_stream_only(data: Path) -> None:
    flip(segment(data, "a", 0), 50)
    assert verify(data, "b") == []
    assert [damage.stream for damage in verify(data, "a")] == ["a"]


def test_an_empty_folder_has_no_damage(tmp_path: Path) -> None:
    assert verify(tmp_path) == []
    assert streams_in(tmp_path) == []


def test_damage_says_stream_file_and_offsets(data: Path) -> None:
    path = segment(data, "b", 1)
    one = read_index(index_of(path))[0][1]
    flip(path, int(one["position"]) + 400)
    first, last = int(one["first"]), int(one["first"] + one["count"] - 1)
    (damage,) = verify(data)
    assert damage == Damage("b", path.name, first, last, "the checksum of a record batch is wrong")
    assert str(damage) == (
        f"stream b, {path.name}: the checksum of a record batch is wrong; messages {first} to {last} are lost"
    )


def test_every_damage_is_reported(data: Path) -> None:
    for stream in "ab":
        flip(segment(data, stream, 0), 100)
        flip(segment(data, stream, 0), segment(data, stream, 0).stat().st_size - 100)
        flip(footer_of(segment(data, stream, 0)), 100)
        flip(index_of(segment(data, stream, 1)), 100)
        flip(segment(data, stream, 2), 10)
    assert [(each.stream, each.file.lstrip("0")) for each in verify(data)] == [
        (stream, name)
        for stream in "ab"
        for name in (
            ".parquet.footer",
            ".parquet",
            f"{index_of(segment(data, stream, 1)).name.lstrip('0')}",
            f"{segment(data, stream, 2).name.lstrip('0')}",
        )
    ]


@pytest.mark.parametrize("kind", ["index", "footer"])
def test_a_missing_file_is_reported(data: Path, kind: str) -> None:
    path = segment(data, "a", 0)
    beside = path.with_name(f"{path.name}.{kind}")
    beside.unlink()
    assert verify(data) == [Damage("a", beside.name, -1, -1, "it is missing")]


def test_a_short_index_of_a_sealed_segment_is_reported(data: Path) -> None:
    index = index_of(segment(data, "a", 1))
    index.write_bytes(index.read_bytes()[:-64])
    assert verify(data) == [Damage("a", index.name, -1, -1, "the last 1 records are missing")]
    index.write_bytes(index.read_bytes()[:-1])
    assert verify(data) == [Damage("a", index.name, -1, -1, "the last 63 bytes are damaged")]


def test_a_short_index_of_the_last_segment_is_as_it_should_be(data: Path) -> None:
    index = index_of(segment(data, "a", 2))
    index.write_bytes(index.read_bytes()[:-64])
    assert verify(data) == []


def test_what_was_never_finished_is_told_and_loses_nothing(data: Path) -> None:
    path = segment(data, "a", 2)
    index = index_of(path)
    index.write_bytes(index.read_bytes()[:-64])
    begin = int(read_index(index)[0][-1]["position"] + read_index(index)[0][-1]["length"])
    whole = path.read_bytes()[: begin + 100]
    path.write_bytes(whole)
    number = len(whole.rstrip(b"\0")) - begin
    assert verify(data) == [Damage("a", path.name, -1, -1, f"its last {number} bytes were never finished")]


def test_what_is_lost_at_the_end_of_a_segment_is_told_by_the_next(data: Path) -> None:
    path, index = segment(data, "a", 1), index_of(segment(data, "a", 1))
    last = read_index(index)[0][-1]
    flip(path, int(last["position"]) + 3)
    index.write_bytes(index.read_bytes()[:-64])
    lost = (int(last["first"]), int(last["first"] + last["count"] - 1))
    assert [(each.file, each.first, each.last) for each in verify(data)] == [(path.name, *lost)]


def test_a_damaged_segment_that_was_kept_is_still_reported(data: Path) -> None:
    path = segment(data, "a", 1)
    flip(path, 2_500)
    before = verify(data)
    assert len(before) == 1
    tiering.to_parquet(FILES, "a", path, "zstd", lambda _: None)
    assert verify(data) == [before[0]._replace(file=f"{path.name}.damaged")]


def test_what_an_interruption_left_is_not_reported(data: Path) -> None:
    folder = data / "streams" / "a"
    (folder / f"{0:020d}.parquet.tmp").write_bytes(b"rubbish")
    (folder / f"{0:020d}.arrow").write_bytes(b"rubbish")
    assert verify(data) == []


def test_what_is_written_rewritten_and_merged_meanwhile_is_not_reported(tmp_path: Path) -> None:
    folder = tmp_path / "streams" / "a"
    (first,) = write_segment(folder, 0, 1)
    finished = threading.Event()

    def write() -> None:
        offset = first.num_rows
        for _ in range(40):
            writer = SegmentWriter(FILES, folder, offset)
            for _ in range(5):
                append(writer, False)
            writer.seal()
            offset = writer.next_offset
            for path in sorted(folder.glob("*.arrow")):
                tiering.to_parquet(FILES, "a", path, "zstd", no_damage)
        finished.set()

    thread = threading.Thread(target=write)
    thread.start()
    found = []
    while not finished.is_set():
        found += verify(tmp_path)
    thread.join()
    assert found == []


# The state


def test_the_state_is_checked(data: Path) -> None:
    path = data / "state.sqlite"
    assert check_state(path) == []
    database = sqlite3.connect(path)
    with database:
        database.execute("CREATE TABLE things (name TEXT PRIMARY KEY, value BLOB)")
        rows = [(f"name {number}", bytes(100)) for number in range(1_000)]
        database.executemany("INSERT INTO things VALUES (?, ?)", rows)
    database.execute("PRAGMA journal_mode = WAL")
    assert verify(data) == []
    database.close()
    before = sorted(data.iterdir())
    assert verify(data) == []
    assert sorted(data.iterdir()) == before
    raw = bytearray(path.read_bytes())
    raw[4096:4106] = b"\xff" * 10
    path.write_bytes(raw)
    found = verify(data)
    assert found
    assert {(each.stream, each.file, each.first) for each in found} == {("", "state.sqlite", -1)}
    assert str(found[0]).startswith("state.sqlite: ")
    assert verify(data, "a") == []


def test_a_state_that_is_no_database_is_reported(data: Path) -> None:
    (data / "state.sqlite").write_bytes(b"rubbish" * 1_000)
    assert [str(each) for each in verify(data)] == ["state.sqlite: file is not a database"]

"""`verify` reports damage exactly, and nothing for intact files or files being written."""

from __future__ import annotations

import shutil
import threading
from contextlib import closing
from pathlib import Path

import pytest

from pyrite.journal.state import SAVE_RETAINED, SAVE_SESSION, State
from pyrite.journal.verify import check_state, verify
from pyrite.storage import tiering
from pyrite.storage.folder import FORMAT, DataFolder
from pyrite.storage.index import index_of, read_index
from pyrite.storage.parquet import footer_of
from pyrite.storage.segment import Damage
from pyrite.storage.segment_writer import SegmentWriter
from pyrite.storage.stream import streams_in
from tests.storage.samples import FILES, append, convert, no_damage, write_segment, write_segments


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with the streams a and b, of three segments each."""
    for name in "ab":
        write_segments(tmp_path / "streams" / name, [3, 3, 3], last_sealed=False)
        convert(tmp_path / "streams" / name, f"{0:020d}.arrow")
    (tmp_path / "format").write_text(FORMAT)
    return tmp_path


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def segment(data: Path, stream: str, number: int) -> Path:
    found = [*(data / "streams" / stream).glob("*.arrow"), *(data / "streams" / stream).glob("*.parquet")]
    return sorted(found)[number]


def test_intact_files_are_not_reported(data: Path) -> None:
    seen: list[tuple[int, int]] = []
    assert verify(data, progress=lambda done, total: seen.append((done, total))) == []
    sizes = [segment(data, stream, number).stat().st_size for stream in "ab" for number in range(3)]
    assert seen == [(sum(sizes[: number + 1]), sum(sizes)) for number in range(6)]


def test_a_single_stream_can_be_verified(data: Path) -> None:
    flip(segment(data, "a", 0), 50)
    assert verify(data, "b") == []
    assert [damage.stream for damage in verify(data, "a")] == ["a"]


def test_an_empty_folder_has_no_damage(tmp_path: Path) -> None:
    assert verify(tmp_path) == []
    assert streams_in(tmp_path) == []


def test_a_stream_without_messages_has_no_damage(data: Path) -> None:
    """As every stream is at first."""
    (data / "streams" / "empty").mkdir()
    assert verify(data) == []
    assert verify(data, "empty") == []


def test_damage_names_stream_file_and_offsets(data: Path) -> None:
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


def test_unfinished_files_are_reported_and_lose_nothing(data: Path) -> None:
    path = segment(data, "a", 2)
    index = index_of(path)
    index.write_bytes(index.read_bytes()[:-64])
    begin = int(read_index(index)[0][-1]["position"] + read_index(index)[0][-1]["length"])
    whole = path.read_bytes()[: begin + 100]
    path.write_bytes(whole)
    number = len(whole.rstrip(b"\0")) - begin
    assert verify(data) == [Damage("a", path.name, -1, -1, f"its last {number} bytes were never finished")]


def test_a_lost_end_of_a_segment_is_reported_from_the_next_one(data: Path) -> None:
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


def test_remains_of_an_interruption_are_not_reported(data: Path) -> None:
    folder = data / "streams" / "a"
    (folder / f"{0:020d}.parquet.tmp").write_bytes(b"rubbish")
    (folder / f"{0:020d}.arrow").write_bytes(b"rubbish")
    assert verify(data) == []


def test_writes_rewrites_and_merges_during_verification_are_not_reported(tmp_path: Path) -> None:
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


def fill_state(path: Path, rounds: int = 6) -> State:
    """Return a state to which some commits were made, as a broker has it."""
    state = State(path)
    for number in range(rounds):
        clients = [f"client {number} {one}" for one in range(100)]
        state.commit([(SAVE_SESSION, (client, 100, None)) for client in clients])
    return state


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def crashed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose broker was killed: there is a write-ahead log."""
    folder = tmp_path_factory.mktemp("state")
    state = fill_state(folder / "state.sqlite")
    for path in folder.iterdir():
        shutil.copy(path, data)
    state.close()
    return data


def test_the_state_is_checked(data: Path) -> None:
    path = data / "state.sqlite"
    assert check_state(path) == []
    fill_state(path).close()
    before = contents(data)
    assert verify(data) == []
    assert contents(data) == before
    raw = bytearray(path.read_bytes())
    raw[3 * 4096 : 3 * 4096 + 10] = b"\xff" * 10
    path.write_bytes(raw)
    found = verify(data)
    assert found
    assert {(each.stream, each.file, each.first) for each in found} == {("", "state.sqlite", -1)}
    assert str(found[0]).startswith("state.sqlite: ")
    assert verify(data, "a") == []


def test_a_state_that_is_not_a_database_is_reported(data: Path) -> None:
    (data / "state.sqlite").write_bytes(b"rubbish" * 1_000)
    assert [str(each) for each in verify(data)] == ["state.sqlite: file is not a database"]


def test_bytes_of_the_state_are_counted(crashed: Path) -> None:
    seen: list[tuple[int, int]] = []
    verify(crashed, progress=lambda done, total: seen.append((done, total)))
    sizes = [segment(crashed, stream, number).stat().st_size for stream in "ab" for number in range(3)]
    sizes += [(crashed / name).stat().st_size for name in ("state.sqlite", "state.sqlite-wal")]
    assert seen[-1] == (sum(sizes), sum(sizes))
    assert {total for _, total in seen} == {sum(sizes)}


def test_the_state_of_a_killed_broker_is_intact_and_not_changed(crashed: Path) -> None:
    before = contents(crashed)
    assert "state.sqlite-shm" in before
    assert verify(crashed) == []
    assert contents(crashed) == before


@pytest.mark.parametrize("place", ["header", "middle"])
def test_damage_to_the_write_ahead_log_is_reported(crashed: Path, place: str) -> None:
    log = crashed / "state.sqlite-wal"
    size = 24 + 4096
    at = {"header": 0, "middle": 32 + (log.stat().st_size - 32) // size // 2 * size}[place]
    flip(log, at + 17)
    before = contents(crashed)
    assert verify(crashed) == [
        Damage("", log.name, -1, -1, f"damaged at byte {at}; the last changes of sessions are lost")
    ]
    assert contents(crashed) == before


def test_a_damaged_row_in_the_write_ahead_log_is_reported(data: Path) -> None:
    state = fill_state(data / "state.sqlite")
    state._database.execute("UPDATE sessions SET expiry = 7 WHERE client_id = 'client 3 4'")
    assert [str(each) for each in verify(data)] == [
        "state.sqlite: a row of sessions is damaged: 'client 3 4'"
    ]
    state.close()


def test_a_failed_transaction_is_not_damage(data: Path) -> None:
    """Its frames stay where they are, until others are written over some of them."""
    state = fill_state(data / "state.sqlite", 2)
    database = state._database
    database.execute("PRAGMA cache_size = 1")
    database.execute("BEGIN")
    database.executemany(
        "INSERT INTO retained VALUES (?, '{}', ?, 0)", [(b"t/%d" % one, bytes(900)) for one in range(200)]
    )
    database.execute("ROLLBACK")
    state.commit([(SAVE_SESSION, ("the last", 100, None))])
    raw = (data / "state.sqlite-wal").read_bytes()
    used = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
    assert len(raw) > 32 + used * (24 + 4096), "something is left of it"
    assert verify(data) == []
    state.close()


def test_a_state_that_is_being_written_is_not_reported(data: Path) -> None:
    with closing(DataFolder(data)):
        state = fill_state(data / "state.sqlite")
        finished = threading.Event()

        def write() -> None:
            for number in range(400):
                topics = [b"t/%d" % (number * 7 + one) for one in range(50)]
                state.commit([(SAVE_RETAINED, (topic, "{}", b"%d" % number)) for topic in topics])
            finished.set()

        thread = threading.Thread(target=write)
        thread.start()
        found = []
        while not finished.is_set():
            found += verify(data)
        thread.join()
        state.close()
    assert found == []

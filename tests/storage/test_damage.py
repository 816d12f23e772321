"""A flipped bit, anywhere: it is found, costs what it hit and no more, and nothing wrong is ever served."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyrite.journal.verify import verify
from pyrite.storage import parquet
from pyrite.storage import verify as verification
from pyrite.storage.frames import END, HEADER
from pyrite.storage.index import index_of, read_index
from pyrite.storage.parquet import footer_of
from pyrite.storage.segment import Damage
from tests.storage.samples import Rows, convert, read, rows_of, without, write_segments

FLIPS = 150
ARROW, PARQUET, LAST = range(3)


class Sample:
    """A data folder with a stream of three segments: sealed Arrow, Parquet, and Arrow that is written to."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.folder = data / "streams" / "default"
        written = write_segments(self.folder, [8, 16, 6], last_sealed=False)
        self.rows = rows_of(written)
        arrow, converted, last = sorted(self.folder.glob("*.arrow"))
        self.paths = [arrow, convert(self.folder, converted.name)[0], last]

    @contextmanager
    def flipped(self, path: Path, bit: int) -> Iterator[None]:
        """Flip a bit of a file for a while."""
        with path.open("r+b") as file:
            for _ in range(2):
                file.seek(bit // 8)
                byte = file.read(1)[0] ^ (1 << bit % 8)
                file.seek(bit // 8)
                file.write(bytes([byte]))
                file.flush()
                if _ == 0:
                    yield

    def expected(self, path: Path, at: int) -> tuple[int, int]:
        """Return the offsets that are lost when a segment is damaged at a place."""
        for one in read_index(index_of(path))[0]:
            if one["position"] <= at < one["position"] + one["length"]:
                return int(one["first"]), int(one["first"] + one["count"] - 1)
        return -1, -1


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "ROW_GROUP_ROWS", 20)
        sample = Sample(tmp_path_factory.mktemp("data"))
    assert verify(sample.data) == []
    assert read(sample.folder) == (sample.rows, [])
    assert len(read_index(index_of(sample.paths[PARQUET]))[0]) > 3
    return sample


@pytest.fixture(autouse=True)
def no_write_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing writes to these files, so verification need not wait for the end of a write."""
    monkeypatch.setattr(verification, "WRITE_TIME", 0.0)


def bits(path: Path, seed: int, number: int = FLIPS) -> Iterator[int]:
    """Choose bits of a file: at random, and the first and the last."""
    size = 8 * path.stat().st_size
    chosen = random.Random(seed)
    yield from (0, size - 1)
    yield from (chosen.randrange(size) for _ in range(number))


def check(sample: Sample, found: list[Damage], file: Path, lost: tuple[int, int], rows: Rows) -> None:
    assert [(each.stream, each.file, each.first, each.last) for each in found] == [
        ("default", file.name, *lost)
    ]
    assert rows == without(sample.rows, found)


@pytest.mark.parametrize("which", [ARROW, PARQUET, LAST])
def test_a_flipped_bit_in_a_segment_loses_only_its_batch(sample: Sample, which: int) -> None:
    path = sample.paths[which]
    for bit in bits(path, which):
        lost = sample.expected(path, bit // 8)
        with sample.flipped(path, bit):
            found = verify(sample.data)
            rows, told = read(sample.folder)
        check(sample, found, path, lost, rows)
        assert [(each.first, each.last) for each in told] == ([lost] if lost[0] >= 0 else [])
    assert read(sample.folder) == (sample.rows, [])


@pytest.mark.parametrize("which", [ARROW, PARQUET, LAST])
def test_a_flipped_bit_in_an_index_costs_nothing(sample: Sample, which: int) -> None:
    path = index_of(sample.paths[which])
    for bit in bits(path, which):
        with sample.flipped(path, bit):
            found = verify(sample.data)
            assert read(sample.folder) == (sample.rows, [])
        check(sample, found, path, (-1, -1), sample.rows)


def test_a_flipped_bit_in_the_copy_of_a_footer_costs_nothing(sample: Sample) -> None:
    path = footer_of(sample.paths[PARQUET])
    for bit in bits(path, 5):
        with sample.flipped(path, bit):
            found = verify(sample.data)
            assert read(sample.folder) == (sample.rows, [])
        check(sample, found, path, (-1, -1), sample.rows)


def test_a_flipped_bit_in_the_index_and_footer_of_parquet_itself_costs_nothing(sample: Sample) -> None:
    path = sample.paths[PARQUET]
    size = path.stat().st_size
    start = size - footer_of(path).stat().st_size - index_of(path).stat().st_size
    chosen = random.Random(6)
    for _ in range(FLIPS):
        with sample.flipped(path, chosen.randrange(8 * start, 8 * size)):
            found = verify(sample.data)
            assert read(sample.folder) == (sample.rows, [])
        check(sample, found, path, (-1, -1), sample.rows)


def test_a_flipped_bit_in_head_or_end_costs_nothing(sample: Sample) -> None:
    path = sample.paths[ARROW]
    size = 8 * path.stat().st_size
    for bit in [*range(0, 8 * len(HEADER), 61), *range(size - 8 * len(END), size)]:
        with sample.flipped(path, bit):
            found = verify(sample.data)
            assert read(sample.folder) == (sample.rows, [])
        check(sample, found, path, (-1, -1), sample.rows)


def test_a_flipped_bit_beside_a_lost_index_never_serves_wrong_rows(sample: Sample) -> None:
    """With two faults, intact rows may be lost, but all served rows are right and in order."""
    path = sample.paths[PARQUET]
    index = index_of(path)
    raw = index.read_bytes()
    index.unlink()
    try:
        assert read(sample.folder) == (sample.rows, [])
        for bit in bits(path, 7, 2 * FLIPS):
            with sample.flipped(path, bit):
                rows, told = read(sample.folder)
                found = verify(sample.data)
            assert rows == without(sample.rows, told)
            assert index.name in {each.file for each in found}
    finally:
        index.write_bytes(raw)


def offsets(damages: list[Damage]) -> set[int]:
    """Return the offsets that are lost."""
    return {offset for each in damages if each.first >= 0 for offset in range(each.first, each.last + 1)}


def test_two_flipped_bits_never_serve_wrong_rows(sample: Sample) -> None:
    # Of the last batch nothing is known if both it and its record are damaged: it may not have been finished.
    last = read_index(index_of(sample.paths[LAST]))[0][-1]
    last_batch = range(last["first"], last["first"] + last["count"])
    chosen = random.Random(8)
    files = [path for path in sample.folder.iterdir() if path.is_file()]
    for _ in range(2 * FLIPS):
        one, other = chosen.choice(files), chosen.choice(files)
        with (
            sample.flipped(one, chosen.randrange(8 * one.stat().st_size)),
            sample.flipped(other, chosen.randrange(8 * other.stat().st_size)),
        ):
            rows, told = read(sample.folder)
            found = verify(sample.data)
        assert found
        known = offsets(told) | (
            {*last_batch} if any("never finished" in each.reason for each in found) else set()
        )
        assert rows == [row for row in sample.rows if row["offset"] not in known]
        assert offsets(found) == offsets(told)


def test_a_truncated_segment_loses_only_its_end(sample: Sample) -> None:
    for path in sample.paths:
        raw = path.read_bytes()
        for size in range(0, len(raw), 997):
            path.write_bytes(raw[:size])
            try:
                rows, told = read(sample.folder)
                found = verify(sample.data)
            finally:
                path.write_bytes(raw)
            assert rows == without(sample.rows, told)
            lost = {(each.first, each.last) for each in found if each.first >= 0}
            assert lost == {(each.first, each.last) for each in told}
            assert {each.file for each in found} == {path.name}


def test_parquet_proves_itself_without_the_files_beside_it(sample: Sample) -> None:
    path = sample.paths[PARQUET]
    beside = [index_of(path), footer_of(path)]
    raws = [each.read_bytes() for each in beside]
    for each in beside:
        each.unlink()
    try:
        assert read(sample.folder) == (sample.rows, [])
        found = verify(sample.data)
        assert [(each.file, each.first) for each in found] == [(each.name, -1) for each in reversed(beside)]
        for bit in bits(path, 9):
            with sample.flipped(path, bit):
                rows, told = read(sample.folder)
                assert rows == without(sample.rows, told)
                assert offsets(verify(sample.data)) == offsets(told)
    finally:
        for each, raw in zip(beside, raws, strict=True):
            each.write_bytes(raw)


def test_without_any_index_pages_prove_themselves(sample: Sample) -> None:
    path = sample.paths[PARQUET]
    index, own = index_of(path), path.read_bytes()
    raw = index.read_bytes()
    index.unlink()
    at = own.index(raw)
    path.write_bytes(own[:at] + bytes(len(raw)) + own[at + len(raw) :])
    chosen = random.Random(10)
    try:
        assert read(sample.folder) == (sample.rows, [])
        for _ in range(FLIPS):
            with sample.flipped(path, chosen.randrange(32, 8 * at)):
                rows, told = read(sample.folder)
                assert offsets(verify(sample.data)) == offsets(told)
            assert rows == without(sample.rows, told)
            assert len(told) <= 1
    finally:
        index.write_bytes(raw)
        path.write_bytes(own)

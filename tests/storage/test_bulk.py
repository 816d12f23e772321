"""Bulk reads of a stream: parts, filters, columns, and lost messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.broker.message import Batch
from pyrite.journal.encoding import Entry
from pyrite.storage import bulk, parquet
from pyrite.storage.bulk import LogFolder
from pyrite.storage.query import COLUMNS, FOREVER, SCHEMA, DataLoss, Query, QueryError
from pyrite.storage.segment_writer import SegmentWriter
from pyrite.storage.stream import StreamReader
from pyrite.topics.filters import matches
from tests.storage.samples import (
    FILES,
    START,
    Rows,
    append_entries,
    convert,
    rows_of,
    write_segment,
    write_segments,
)
from tests.support.durable import quick_folder


def fill(data: Path) -> Rows:
    """Write a stream of three segments, two of which are Parquet; return its rows as they are shown."""
    folder = data / "streams" / "default"
    rows = rows_of(write_segments(folder, [12, 9, 7], last_sealed=False))
    convert(folder, *sorted(path.name for path in folder.glob("*.arrow"))[:2])
    return [{name: row[name] for name in COLUMNS} for row in rows]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogFolder:
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 5)  # so that a small file has several row groups
    return LogFolder(tmp_path)


def microseconds(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_a_query_without_filters_returns_every_message(log: LogFolder) -> None:
    rows = fill(log.data)
    assert log.streams() == ["default"]
    assert log.bounds("default") == (0, len(rows))
    batches = list(log.read(Query()))
    assert rows_of(batches) == rows
    assert [batch.schema for batch in batches] == [SCHEMA], "small batches are put together"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_query_returns_the_same_as_filtering_all_rows(data: st.DataObject) -> None:
    with quick_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "ROW_GROUP_ROWS", 5)
        rows = fill(folder)
        log = LogFolder(folder)
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(rows) + 3)] * 2)))
        topics = data.draw(st.lists(st.sampled_from(["a", "a/#", "+/b", "grün/+", "none"]), max_size=2))
        times = st.none() | st.integers(START - 2, START + len(rows) + 2)
        since, until = data.draw(times), data.draw(times)
        columns = data.draw(st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True))
        query = Query("default", start, stop, tuple(topics), since, until, tuple(columns))
        expected = [
            {name: row[name] for name in columns}
            for row in rows[start:stop]
            if (not topics or any(matches(one.encode(), row["topic"].encode()) for one in topics))
            and (since is None or microseconds(row["timestamp"]) >= since)
            and (until is None or microseconds(row["timestamp"]) < until)
        ]
        assert rows_of(list(log.read(query))) == expected
        parts = log.split("default", start, stop, data.draw(st.integers(1, 9)))
        assert [row for part in parts for row in rows_of(list(log.read(query.part(*part))))] == expected
        assert Query.from_json(query.to_json()) == query


def test_parts_are_about_equal(log: LogFolder) -> None:
    rows = fill(log.data)
    parts = log.split("default", 0, len(rows), 4)
    assert len(parts) == 4
    assert (parts[0][0], parts[-1][1]) == (0, len(rows))
    assert all(one[1] == two[0] for one, two in pairwise(parts))
    assert max(stop - start for start, stop in parts) < len(rows) / 2
    assert log.split("default", 5, 5, 4) == []
    assert log.split("default", len(rows), FOREVER, 4) == []


def test_a_part_is_bounded_by_messages_and_bytes(log: LogFolder) -> None:
    rows = fill(log.data)
    end = len(rows)
    assert log.advance("default", 0, None, None) == end
    assert log.advance("default", 3, 10, None) == 13
    assert log.advance("default", 0, 10**9, 10**9) == end
    assert log.advance("default", end, 10, 10) == end
    small = log.advance("default", 0, None, 1)
    assert 0 < small < end, "one record batch, however large it is"
    steps = [0]
    while steps[-1] < end:
        steps.append(log.advance("default", steps[-1], None, 3_000))
        assert steps[-1] > steps[-2]
    assert len(steps) > 3


def test_parts_count_messages_rather_than_offsets(log: LogFolder) -> None:
    """Offsets that a failed write was given are missing."""
    folder = log.data / "streams" / "default"
    first = rows_of(write_segment(folder, 0, 4))
    write_segment(folder, 1_000, 4, sealed=False)
    assert log.advance("default", 0, len(first), None) == len(first)
    assert log.advance("default", 0, len(first) + 2, None) == 1_002


def test_positions_are_resolved_to_offsets(log: LogFolder) -> None:
    rows = fill(log.data)
    assert log.offset("default", "earliest") == 0
    assert log.offset("default", "latest") == len(rows)
    assert log.offset("default", "17") == 17
    time = rows[20]["timestamp"]
    expected = next(row["offset"] for row in rows if row["timestamp"] >= time)
    assert log.offset("default", time.isoformat()) == expected
    with pytest.raises(QueryError, match="'soon' is not a position"):
        log.offset("default", "soon")


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_messages_published_while_the_clock_was_wrong_are_found_by_time(log: LogFolder, form: str) -> None:
    """A machine may not know the time when it starts, and begin with one that was before."""
    folder = log.data / "streams" / "default"
    folder.mkdir(parents=True)
    times = [100, 101, 102, 50, 51, 103, 60, 104]
    writer = SegmentWriter(FILES, folder, 0)
    for time in times:
        append_entries(writer, [Entry(Batch(b"a", b"x", 1, False), START + time, None)], True)
    writer.seal()
    if form == "parquet":
        convert(folder)
    reader = StreamReader(folder)
    for time in range(49, 106):
        found = next((offset for offset, each in enumerate(times) if each >= time), len(times))
        assert reader.offset_at(START + time) == found, time
        query = Query(since=START + time, until=START + time + 2, columns=("offset",))
        offsets = [row["offset"] for row in rows_of(list(log.read(query)))]
        assert offsets == [offset for offset, each in enumerate(times) if time <= each < time + 2], time


def test_removal_by_retention_is_reported(log: LogFolder) -> None:
    rows = fill(log.data)
    folder = log.data / "streams" / "default"
    for path in folder.glob("00000000000000000000.*"):
        path.unlink()
    first = log.bounds("default").first
    assert 0 < first < len(rows)
    assert log.offset("default", "earliest") == first
    with pytest.raises(DataLoss, match=f"stream default: offsets 2 to {first - 1} are not kept any longer"):
        list(log.read(Query(start=2)))
    told: list[str] = []
    assert rows_of(list(log.read(Query(start=2, lost="skip"), told.append))) == rows[first:]
    assert told == [f"stream default: offsets 2 to {first - 1} are not kept any longer"]
    assert rows_of(list(log.read(Query(start=first)))) == rows[first:]


def test_removal_by_retention_during_a_read_is_reported(
    log: LogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fill(log.data)
    monkeypatch.setattr(bulk, "MIN_ROWS", 1)  # so that it is read bit by bit
    folder = log.data / "streams" / "default"
    bases = sorted({path.name[:20] for path in folder.iterdir()})
    read = log.read(Query())
    next(read)
    for path in [*folder.glob(f"{bases[0]}*"), *folder.glob(f"{bases[1]}*")]:
        path.unlink()
    with pytest.raises(DataLoss, match="are not kept any longer"):
        list(read)
    assert log.bounds("default").first == int(bases[2]) < len(rows)


def test_damage_is_reported(log: LogFolder) -> None:
    rows = fill(log.data)
    (path,) = (log.data / "streams" / "default").glob("*.arrow")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataLoss, match="stream default"):
        list(log.read(Query()))
    told: list[str] = []
    good = rows_of(list(log.read(Query(lost="skip"), told.append)))
    assert len(told) == 1
    assert 0 < len(good) < len(rows)
    assert all(row in rows for row in good)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"columns": ("topic", "colour")}, "there is no column 'colour'; there are: offset, timestamp"),
        ({"lost": "cry"}, "lost='cry': expected 'fail' or 'skip'"),
        ({"stream": 5}, "stream=5: expected a text"),
        ({"start": "0"}, "start='0': expected a number"),
        ({"stop": 1.5}, "stop=1.5: expected a number"),
        ({"stop": 2**63}, "stop=9223372036854775808: expected a number"),
        ({"since": True}, "since=True: expected a number"),
        ({"until": 10**5_00}, r"until=1000+\.\.\.: expected a number"),
        ({"topics": "a"}, "topics='a': expected texts"),
        ({"topics": (1,)}, r"topics=\(1,\): expected texts"),
        ({"topics": ("a", "s/#/x")}, "topics: invalid topic filter 's/#/x'"),
        ({"topics": ("a#",)}, "topics: invalid topic filter 'a#'"),
        ({"topics": ("",)}, "topics: invalid topic filter ''"),
        ({"topics": ("\ud800",)}, "topics: "),
        ({"columns": ()}, "columns: expected at least one"),
        ({"columns": "topic"}, "columns='topic': expected texts"),
    ],
)
def test_invalid_queries_are_refused(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(QueryError, match=text):
        Query(**arguments)  # type: ignore[arg-type]


def test_a_query_of_an_unknown_stream_is_refused(log: LogFolder) -> None:
    with pytest.raises(QueryError, match="there is no stream 'news'; there are no streams"):
        log.bounds("news")
    fill(log.data)
    with pytest.raises(QueryError, match="there is no stream 'news'; there are: default"):
        list(log.read(Query("news")))


def test_invalid_json_is_refused_as_a_query() -> None:
    for data in (b"", b"[1]", b"\xff", b"[" * 100_000):
        with pytest.raises(QueryError, match="expected a JSON object"):
            Query.from_json(data)
    with pytest.raises(QueryError, match="there is no 'colour' in a query; there are: stream, start"):
        Query.from_json(b'{"colour": 1}')


def test_the_number_of_parts_is_bounded(log: LogFolder) -> None:
    fill(log.data)
    for parts in (0, 10_001, 10**12):
        with pytest.raises(QueryError, match=f"parts={parts}: expected a number from 1 to 10000"):
            log.split("default", 0, 10, parts)

"""Topics that are asked for: what lies on disk for others is not decoded, and some of it not even read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrite.broker.message import Batch
from pyrite.journal.encoding import Entry
from pyrite.storage import bulk, frames, parquet
from pyrite.storage.bulk import LogFolder
from pyrite.storage.query import DataLoss, Query
from pyrite.storage.schema import plain
from pyrite.storage.segment_writer import SegmentWriter
from pyrite.storage.wanted import Topics
from pyrite.topics.filters import bounds, matches
from tests.storage.samples import FILES, START, append_entries, convert

COUNT = 100
"""Messages in a record batch: enough for it to be compressed."""
TOPICS = ["home/kitchen", "sensors/1", "home/cellar", "zoo"]


def write(folder: Path, base: int, topics: Sequence[str], sealed: bool = True) -> int:
    """Write a segment with a record batch for each topic; return where the next one begins."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = SegmentWriter(FILES, folder, base)
    for topic in topics:
        batch = Batch(topic.encode(), b"x" * 200 * COUNT, 0, False, None, None, "ann", COUNT, 200)
        append_entries(writer, [Entry(batch, START, None)], False)
    if sealed:
        writer.seal()
    else:
        writer.close()
    return writer.next_offset


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogFolder:
    """A log of two segments, the first in Parquet with a row group for each topic, the second in Arrow."""
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", COUNT)
    folder = tmp_path / "streams" / "default"
    end = write(folder, 0, TOPICS)
    convert(folder)
    write(folder, end, TOPICS, sealed=False)
    return LogFolder(tmp_path)


def offsets(log: LogFolder, *topics: str) -> list[int]:
    query = Query(topics=topics, columns=("offset", "payload"))
    return [offset for batch in log.read(query) for offset in batch.column(0).to_pylist()]


def of_batches(*numbers: int) -> list[int]:
    return [number * COUNT + at for number in numbers for at in range(COUNT)]


def test_only_batches_with_a_requested_topic_are_decoded(
    log: LogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    read: list[tuple[int, Sequence[str]]] = []
    read_row_group = pq.ParquetFile.read_row_group

    def count_plain(rows: pa.RecordBatch) -> pa.RecordBatch:
        decoded.append(rows.column(0).values[0].as_py() // COUNT)
        return plain(rows)

    def count_row_group(file: pq.ParquetFile, number: int, names: Sequence[str], **options: Any) -> pa.Table:
        read.append((number, names))
        return read_row_group(file, number, names, **options)

    monkeypatch.setattr(frames, "plain", count_plain)
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", count_row_group)
    assert offsets(log, "+/kitchen") == of_batches(0, 4)
    assert decoded == [4]
    whole = ["offset", "topic", "payload"]
    assert read == [(0, ["topic"]), (0, whole), (1, ["topic"]), (2, ["topic"]), (3, ["topic"])]
    for everything in ([], ["#"], ["zoo", "#"]):
        decoded.clear()
        read.clear()
        assert offsets(log, *everything) == of_batches(*range(8))
        assert decoded == [4, 5, 6, 7]
        assert read == [(number, ["offset", "payload"]) for number in range(4)]


def test_row_groups_without_requested_topics_are_not_read(log: LogFolder) -> None:
    (path,) = (log.data / "streams" / "default").glob("*.parquet")
    data = bytearray(path.read_bytes())
    data[8:200] = bytes(192)  # of the row group of home/kitchen
    path.write_bytes(data)
    with pytest.raises(DataLoss, match="messages 0 to 99 are lost"):
        offsets(log)
    with pytest.raises(DataLoss, match="messages 0 to 99 are lost"):
        offsets(log, "home/#")
    assert offsets(log, "sensors/#") == of_batches(1, 5)
    assert offsets(log, "zoo", "home/cellar") == of_batches(2, 3, 6, 7)
    assert offsets(log, "a", "zz") == []


def test_removal_before_messages_of_other_topics_is_reported(
    log: LogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MIN_ROWS", 1)
    folder = log.data / "streams" / "default"
    write(folder, log.bounds("default").end, ["zoo", "zoo"], sealed=False)
    read = log.read(Query(topics=("home/kitchen",)))
    next(read)
    for path in [path for path in folder.iterdir() if int(path.name[:20]) < 8 * COUNT]:
        path.unlink()
    with pytest.raises(DataLoss, match="offsets 400 to 799 are not kept any longer"):
        list(read)


def test_skipped_messages_may_be_removed(log: LogFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MIN_ROWS", 1)
    folder = log.data / "streams" / "default"
    read = log.read(Query(start=COUNT, topics=("home/kitchen",)))
    next(read)
    for path in folder.glob(f"{0:020d}*"):
        path.unlink()
    assert list(read) == []


def test_a_query_without_matches_reports_where_to_continue(log: LogFolder) -> None:
    write(log.data / "streams" / "default", 8 * COUNT, ["other"] * 3, sealed=False)
    assert [after for _, after in log.pieces(Query(topics=("zoo",)))] == [11 * COUNT]


LEVELS = st.lists(st.sampled_from(["", "a", "b", "ä", "$x", "~"]), min_size=1, max_size=3)
FILTERS = st.tuples(LEVELS, st.sampled_from(["", "+", "#", "+/a", "+/#"])).map(
    lambda parts: "/".join([*parts[0], parts[1]] if parts[1] else parts[0])
)


@given(FILTERS.filter(bool), LEVELS.map("/".join).filter(bool))
def test_a_topic_that_matches_lies_within_the_bounds_of_its_filter(topic_filter: str, topic: str) -> None:
    topics = Topics([topic_filter.encode()])
    assert (topic in topics) == matches(topic_filter.encode(), topic.encode())
    if topic in topics:
        first, last = bounds(topic_filter.encode())
        assert first <= topic.encode() <= last
        assert topics.any_between(topic, topic)

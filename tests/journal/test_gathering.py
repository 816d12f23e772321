"""Gathering rows of a stream: however they are split into writes, each is written once, in order."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyrite.broker.message import Batch, MixedBatch, Properties
from pyrite.journal import gathering
from pyrite.journal.gathering import (
    MAX_BUILT_BYTES,
    MAX_BYTES,
    MAX_ENTRIES,
    MAX_MESSAGES,
    MAX_ROWS,
    Gathering,
    encode,
)
from pyrite.storage import frames
from pyrite.storage.frames import Encoded
from pyrite.storage.tail import batch_of

Row = dict[str, Any]
CARRIED = Properties(content_type="text/plain", user_properties=(("a", "b"), ("a", "c")))


def strided(
    count: int, size: int, qos: int = 0, properties: Properties | None = None, head: int = 4
) -> Batch:
    """Messages of one topic, each of which can be told from the others."""
    payloads = [
        number.to_bytes(4, "big")[-size:].ljust(size, b".") if size else b"" for number in range(count)
    ]
    data = b"".join(b"h" * head + payload for payload in payloads)
    return Batch(b"a/b", data, qos, False, properties, None, "client", count, head + size, head)


def mixed(count: int, several: bool = False) -> Batch:
    """Messages of two topics, from one publisher or several."""
    data, starts, topics, ids_at = b"", [], [], []
    for number in range(count):
        topic, payload = (b"a/b", b"c/long")[number % 2], b"%d" % number
        starts.append(len(data))
        topics.append(topic)
        size = 2 + len(topic) + len(payload)
        data += b"\x30" + bytes([size]) + len(topic).to_bytes(2, "big") + topic
        ids_at.append(len(data))
        data += payload
    origin = [f"client{number % 3}" for number in range(count)] if several else "client"
    return MixedBatch(data, starts, topics, ids_at, 0, 0, origin, 4)


def gathered(batches: list[Batch]) -> Gathering:
    """Give batches to a gathering, with offsets as the journal gives them."""
    one, offset = Gathering(), 100
    for number, batch in enumerate(batches):
        batch.offset = offset
        offset += batch.count
        one.add(batch, 1_000 + number, None, batch.qos > 0)
    return one


def expected(batches: list[Batch]) -> list[Row]:
    """Tell what should be written."""
    rows: list[Row] = []
    for number, batch in enumerate(batches):
        for part in batch.parts():
            for payload in part.payloads():
                carried = part.properties
                rows.append(
                    {
                        "offset": 100 + len(rows),
                        "timestamp": 1_000 + number,
                        "topic": part.topic.decode(),
                        "payload": payload,
                        "qos": part.qos,
                        "retain": part.retain,
                        "client_id": part.origin,
                        "content_type": carried and carried.content_type,
                        "user_properties": carried
                        and [{"key": key, "value": value} for key, value in carried.user_properties],
                    }
                )
    return rows


def written(pieces: list[Encoded]) -> list[Row]:
    """Read the written bytes as any Arrow library would."""
    rows: list[Row] = []
    for piece in pieces:
        batch = frames.decode(memoryview(b"".join(piece.frame.pieces)))
        assert batch.num_rows == piece.messages
        assert batch.column("offset")[0].as_py() == piece.first
        found = read(batch)
        assert (found[0]["timestamp"], found[-1]["timestamp"]) == (piece.earliest, piece.latest)
        rows += found
    return rows


def read(batch: pa.RecordBatch) -> list[Row]:
    """Return the columns that tell messages apart."""
    table = pa.Table.from_batches([batch])
    table = table.set_column(1, "timestamp", table.column("timestamp").cast(pa.int64()))
    names = ["offset", "timestamp", "topic", "payload", "qos", "retain", "client_id", "content_type"]
    rows: list[Row] = table.select([*names, "user_properties"]).to_pylist()
    return rows


def one_message(payload: bytes, topic: bytes, client: str | None, retain: bool, qos: int) -> Batch:
    """A message that came by itself."""
    data = b"head" + payload if payload else b""
    return Batch(topic, data, qos, retain, None, None, client, 1, len(data), 4 if payload else 0)


singles = st.builds(
    one_message,
    st.sampled_from([b"", b"1", b"2", b"33"]),
    st.sampled_from([b"a", b"a", b"a", b"b"]),
    st.sampled_from(["c", "c", None]),
    st.sampled_from([False, False, True]),
    st.sampled_from([0, 0, 0, 1]),
)
some = st.one_of(
    singles,
    st.builds(
        strided,
        st.sampled_from([1, 2, MAX_ROWS - 1, MAX_ROWS, MAX_ROWS + 1, 1_000]),
        st.sampled_from([0, 1, 4, 64]),
        st.sampled_from([0, 0, 0, 1, 2]),
        st.sampled_from([None, CARRIED]),
    ),
    st.builds(mixed, st.integers(2, 40), st.booleans()),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(some, min_size=1, max_size=8) | st.lists(singles, min_size=1, max_size=50))
@example([strided(2, 4), strided(99, 4, head=0), mixed(30), strided(9, 0), mixed(3)])
@example([strided(MAX_ROWS, 0)])
@example([strided(MAX_ROWS + 1, 0)])
def test_all_is_written_once_and_in_order(batches: list[Batch]) -> None:
    one = gathered(batches)
    one.cut()
    left = [piece for piece in one.pieces if isinstance(piece, list)]
    assert all(sum(entry.batch.count for entry in piece) <= MAX_ROWS for piece in left), "tried again"
    assert one.end == 100 + sum(batch.count for batch in batches)
    assert one.promised == any(batch.qos for batch in batches)
    assert one.unpromised == sum(batch.count for batch in batches if not batch.qos)
    assert written(encode(one.pieces)) == expected(batches)
    rows = one.rows()
    if rows is not None:
        assert read(batch_of(rows, 100)) == expected(batches), "in the tail"
    waiting = [(part.topic, p) for b in batches if not b.qos for part in b.parts() for p in part.payloads()]
    for unwritten in (gathered(batches), one):
        parts = [part for batch, _, _ in unwritten.unrouted() for part in batch.parts()]
        assert [(part.topic, p) for part in parts for p in part.payloads()] == waiting


@pytest.mark.parametrize(
    ("batches", "pieces"),
    [
        ([strided(MAX_MESSAGES // 2, 8, properties=CARRIED, qos=1) for _ in range(5)], 3),
        ([strided(1_000, MAX_BYTES // 2_000, qos=1) for _ in range(5)], 3),
        ([strided(1, number % 3) for number in range(2 * MAX_ENTRIES + 1)], 3),
        ([strided(1, MAX_BUILT_BYTES), strided(1, 8)], 2),
    ],
    ids=["messages", "bytes", "batches", "one message that is large"],
)
def test_much_becomes_several_record_batches(batches: list[Batch], pieces: int) -> None:
    """None of them is large, unless a message is."""
    one = gathered(batches)
    one.cut()
    made = encode(one.pieces)
    assert len(made) == pieces
    assert written(made) == expected(batches)


def test_rows_can_be_read_before_they_are_written() -> None:
    """From those that were made record batches, and those that were not; only messages with QoS 0."""
    batches = [strided(100, 8), strided(2, 8, qos=1), strided(1, 8), mixed(4)]
    one = gathered(batches[:1])
    one.cut()
    for batch in batches[1:]:
        batch.offset = one.end
        one.add(batch, 2_000, None, batch.qos > 0)
    last = strided(100, 3)
    last.offset = one.end
    one.add(last, 3_000, None, last.qos > 0)
    quiet = [part for batch in [*batches, last] if not batch.qos for part in batch.parts()]
    found = one.unrouted()
    parts = [part for batch, _, _ in found for part in batch.parts()]
    assert [(part.topic, p) for part in parts for p in part.payloads()] == [
        (batch.topic, p) for batch in quiet for p in batch.payloads()
    ]
    assert found[0][1:] == (100, 1_000)
    assert found[-1][1:] == (last.offset, 3_000)
    one.cut()
    again = one.unrouted()
    assert [p for batch, _, _ in again for p in batch.payloads()] == [p for b in quiet for p in b.payloads()]


def test_an_error_in_making_columns_is_met_again_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost by it, and the event loop goes on."""
    batches = [strided(2, 8), strided(100, 8)]
    with monkeypatch.context() as patch:
        patch.setattr(gathering, "build", lambda *_: 1 / 0)
        one = gathered(batches)
        one.cut()
        with pytest.raises(ZeroDivisionError):
            encode(one.pieces)
    assert written(encode(one.pieces)) == expected(batches)

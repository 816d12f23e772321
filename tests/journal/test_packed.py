"""Record batches that are made with little of Arrow's help are what Arrow would have made."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyrite.broker.message import Batch, Properties
from pyrite.journal import blocks, packed
from pyrite.journal.encoding import Entry, build
from pyrite.storage import frames
from pyrite.storage.schema import plain

LZ4 = pa.Codec("lz4")
CARRIED = Properties(content_type="text/plain", user_properties=(("a", "b"),), message_expiry=9)
KINDS = [
    (b"a", "me", None),
    (b"a", None, None),
    ("\u00e4/long".encode(), "me", CARRIED),
    (b"a", "me", CARRIED),
]


def batch(kind: int, count: int, size: int, random: bool = False) -> Batch:
    """Messages of a kind."""
    topic, origin, properties = KINDS[kind]
    one = os.urandom(count * size) if random else bytes(n % 251 for n in range(count)) * size
    return Batch(topic, one, 0, False, properties, None, origin, count, size)


def frame_of(batches: list[Batch], first: int = 5) -> frames.Frame:
    """Make a frame of batches that came one after the other, a second apart."""
    return packed.encode([block_of(one, 1_000_000 * number) for number, one in enumerate(batches, 1)], first)


def block_of(one: Batch, time: int) -> blocks.Block:
    """Make a block of a batch, which can be one."""
    block = blocks.pack(one, time)
    assert block is not None
    return block


def arrows(batches: list[Batch], first: int = 5) -> pa.RecordBatch:
    """Have Arrow make it."""
    entries = [Entry(one, 1_000_000 * number, None) for number, one in enumerate(batches, 1)]
    rows = plain(build(entries, first))
    rows.validate(full=True)
    return rows


counts = st.sampled_from([6, 7, 8, 63, 64, 65, 255, 256, 257, 300, 1_000, 8_191, 8_192, 8_193])
some = st.builds(batch, st.integers(0, len(KINDS) - 1), counts, st.sampled_from([1, 7, 8, 30]), st.booleans())


@settings(max_examples=80, deadline=None)
@given(st.lists(some, min_size=1, max_size=6), st.integers(0, 2**62))
@example([batch(0, 32_768, 8), batch(0, 32_768, 8), batch(0, 32_000, 8)], 2**40)
@example([batch(number % 4, 300, 4) for number in range(20)], 0)
@example([batch(0, blocks.MOST, 1), batch(1, blocks.MOST // 2, 2, True)], 0)
def test_the_bytes_are_what_arrow_would_write(batches: list[Batch], first: int) -> None:
    """Of however many kinds and sizes, and payloads that LZ4 can do nothing with."""
    frame = frame_of(batches, first)
    whole = b"".join(frame.pieces)
    assert len(whole) == frame.size
    assert frame.size % 8 == 0
    rows = frames.decode(memoryview(whole))
    rows.validate(full=True)
    assert rows.equals(arrows(batches, first))


def test_any_arrow_library_reads_it_as_a_stream() -> None:
    """Beside record batches that Arrow made itself."""
    batches = [batch(0, 500, 16), batch(2, 700, 16)]
    ours = b"".join(frame_of(batches).pieces)
    theirs = b"".join(frames.encode(build([Entry(batch(1, 100, 8), 1, None)], 0)).pieces)
    with pa.ipc.open_stream(b"".join([frames.HEADER, theirs, ours, theirs, frames.END])) as stream:
        found = list(stream)
    assert [rows.num_rows for rows in found] == [100, 1_200, 100]
    for rows in found:
        rows.validate(full=True)
    assert plain(found[1]).equals(arrows(batches))


def test_its_buffers_are_frames_of_lz4() -> None:
    """What comes after a buffer's size is one whole frame."""
    made = [block_of(batch(0, 1_000, 16), 7), block_of(batch(0, 40, 16, random=True), 8)]
    payloads = b"".join(blocks.unpack(one).data for one in made)
    times = (7).to_bytes(8, "little") * 1_000 + (8).to_bytes(8, "little") * 40
    for buffer, data in ((blocks.values(made), payloads), (blocks.times(made), times)):
        assert int.from_bytes(buffer[:8], "little") == len(data)
        assert LZ4.decompress(buffer[8:], len(data), asbytes=True) == data
    for size in (*range(1, 400), blocks.MOST - 1, blocks.MOST, blocks.MOST + 1, 3 * blocks.MOST + 5):
        assert LZ4.decompress(blocks.zeros(size)[8:], size, asbytes=True) == bytes(size)


def test_alike_messages_take_little_space() -> None:
    """Times and what no message has are said once for all of them."""
    flood = [batch(0, 8_000, 8) for _ in range(8)]
    body = frame_of(flood).size - len(blocks.values([block_of(one, 0) for one in flood]))
    assert body < 4 * 64_000 + 8_000, "beside payloads there is hardly more than where they end"


def test_the_cache_of_kinds_is_bounded() -> None:
    """However many topics there are, and it is right for each."""
    for number in range(200):
        one = Batch(b"t/%d" % number, bytes(300), 0, count=300, stride=1)
        rows = frames.decode(memoryview(b"".join(frame_of([one]).pieces)))
        assert rows.column("topic").unique().to_pylist() == [f"t/{number}"]
    assert packed._remembered.cache_info().currsize <= 64


@pytest.mark.parametrize("at", [40, 400, -20])
def test_a_flipped_bit_is_found(at: int) -> None:
    """As in every other record batch."""
    damaged = bytearray(b"".join(frame_of([batch(0, 1_000, 16)]).pieces))
    damaged[at] ^= 4
    with pytest.raises(frames.Damaged):
        frames.decode(memoryview(damaged))

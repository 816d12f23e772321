"""Codec for runs of PUBACK, PUBREC, PUBREL and PUBCOMP. HOT."""

from __future__ import annotations

from struct import unpack

MAX_ACK_RUN = 1_024
"""Acknowledgements handled without interruption."""


def unpack_ids(high: bytes, low: bytes) -> tuple[int, ...]:
    """Return packet ids from their high and low bytes."""
    if len(high) == 1:
        return (high[0] << 8 | low[0],)
    both = bytearray(2 * len(high))
    both[0::2] = high
    both[1::2] = low
    return unpack(f">{len(high)}H", both)


def write_acks(first: int, high: bytes, low: bytes, reason: int) -> bytes | bytearray:
    """Return acknowledgements for many packets; `first` is the first byte of each."""
    count = len(high)
    if count == 1:
        return bytes((first, 3, high[0], low[0], reason) if reason else (first, 2, high[0], low[0]))
    if reason:
        acks = bytearray(bytes((first, 3, 0, 0, reason)) * count)
        acks[2::5] = high
        acks[3::5] = low
        return acks
    acks = bytearray(bytes((first, 2, 0, 0)) * count)
    acks[2::4] = high
    acks[3::4] = low
    return acks


def ack_run(data: bytes, start: int) -> int:
    """Return the length of the run of 4-byte acknowledgements with equal first bytes at `start`.

    The result is MAX_ACK_RUN at most, and so is the work.
    """
    if data[start + 4 : start + 6] != data[start : start + 2]:
        return 1
    stop = start + 4 * MAX_ACK_RUN
    firsts = data[start:stop:4]
    lengths = data[start + 1 : stop : 4]
    ids = len(data[start + 3 : stop : 4])  # complete ones only
    alike = len(firsts) - len(firsts.lstrip(firsts[:1]))
    short = len(lengths) - len(lengths.lstrip(b"\x02"))
    return min(alike, short, ids)

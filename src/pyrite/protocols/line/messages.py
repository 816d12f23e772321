"""Encode batches as Message frames."""

from __future__ import annotations

from pyrite.broker.message import Batch
from pyrite.protocols.line.frames import escape

LINE_FORM = 256
"""`Batch.form` of messages received as `Publish TOPIC LENGTH noack`; mqtt/delivery.py defines other forms."""


def numbered_message(batch: Batch, number: int, options: bytes = b"") -> bytes:
    """Encode a single message that the client acknowledges by its number."""
    if batch.retain:
        options += b" retain"
    return b"%s n=%d%s\n%s\n" % (_head(batch), number, options, batch.payload())


def plain_messages(batch: Batch) -> bytes:
    """Encode the messages of a batch without numbers; the batch caches the bytes for all subscribers. HOT."""
    wires = batch.wires
    if wires is None:
        wires = batch.wires = {}
    wire: bytes | None = wires.get("line")
    if wire is None and batch.form == LINE_FORM:
        # `Publish` and `Message` have the same length: only the first word of each frame is overwritten.
        data = bytearray(batch.data)
        for at, letter in enumerate(b"Message", 1):
            data[at :: batch.stride] = bytes((letter,)) * batch.count
        wire = wires["line"] = bytes(memoryview(data)[1:]) + b"\n"
    elif wire is None:
        head = _head(batch) + (b" retain\n" if batch.retain else b"\n")
        wire = wires["line"] = head + (b"\n" + head).join(batch.payloads()) + b"\n"
    return wire


def single_messages(batch: Batch, start: int, stop: int) -> list[Batch]:
    """Return messages `start` to `stop` of a batch as one batch each."""
    return [
        part.part(index, index + 1) for part in batch.part(start, stop).parts() for index in range(part.count)
    ]


def _head(batch: Batch) -> bytes:
    return b"Message %s %d" % (escape(batch.topic), batch.stride - batch.payload_at)

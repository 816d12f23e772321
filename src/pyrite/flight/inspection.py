"""Inspects the input of Flight clients before gRPC and Arrow parse it.

gRPC accepts messages of any length, and decompresses them; Arrow decompresses the buffers of a record batch.
Neither can be disabled, and a few kilobytes may become gigabytes before our code is called. So this module
parses the bytes on their way to gRPC: HTTP/2 frames (RFC 9113), gRPC messages in DATA frames, the fields of a
message (protobuf), and in `data_header` the metadata of a record batch (flatbuffers). Payloads are skipped.
"""

from __future__ import annotations

from collections.abc import Generator
from struct import error as StructError
from struct import unpack_from

from pyrite.errors import PyriteError

MAX_MESSAGE = 288 * 1024 * 1024
"""Maximum bytes of a gRPC message: enough for a record batch with the largest MQTT message."""
MAX_HEADER = 4 * 1024 * 1024
"""Maximum bytes of the metadata of a record batch."""
MAX_STREAMS = 1_000
"""Maximum open calls on one connection."""

_PREFACE = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
_DATA, _RST_STREAM = 0, 3
_END_STREAM, _PADDED = 1, 8
_DATA_HEADER = 2
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


class InputRefused(PyriteError):
    """Input of a client that is not accepted."""


class Inspection:
    """Inspects the input of one client. `feed` raises InputRefused before refused bytes are forwarded."""

    def __init__(self) -> None:
        self._pending = bytearray()
        """The incomplete header of a frame."""
        self._skip = _PREFACE
        """Bytes to skip."""
        self._stream: _Message | None = None
        """The call whose DATA frame is being received."""
        self._left = 0
        """Bytes of the frame that are not received yet."""
        self._padding = 0
        self._padded = False
        self._end = 0
        """The HTTP/2 stream that ends with this frame, or 0."""
        self._streams: dict[int, _Message] = {}

    def feed(self, data: bytes) -> None:
        """Inspect more bytes."""
        at, view = 0, memoryview(data)
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
            elif self._stream is not None:
                at = self._data(view, at)
            else:
                step = min(9 - len(self._pending), len(data) - at)
                self._pending += view[at : at + step]
                at += step
                if len(self._pending) == 9:
                    self._frame()

    def _frame(self) -> None:
        length = int.from_bytes(self._pending[:3], "big")
        kind, flags = self._pending[3], self._pending[4]
        number = int.from_bytes(self._pending[5:9], "big") & 0x7FFFFFFF
        self._pending.clear()
        if kind == _DATA:
            if number not in self._streams and len(self._streams) >= MAX_STREAMS:
                raise InputRefused(f"more than {MAX_STREAMS} calls at the same time")
            self._stream = self._streams.setdefault(number, _Message())
            self._left, self._padding, self._padded = length, 0, bool(flags & _PADDED)
            self._end = number if flags & _END_STREAM else 0
            if not length:
                self._end_frame()
        else:
            self._skip = length
            if kind == _RST_STREAM:
                self._streams.pop(number, None)

    def _data(self, view: memoryview, at: int) -> int:
        assert self._stream is not None
        if self._padded:
            self._padding, self._padded = view[at], False
            self._left -= 1
            at += 1
        step = min(max(0, self._left - self._padding), len(view) - at)
        self._stream.feed(view[at : at + step])
        self._left -= step
        at += step
        if self._left <= self._padding:
            self._skip = max(0, self._left)
            self._end_frame()
        return at

    def _end_frame(self) -> None:
        self._stream = None
        if self._end:
            self._streams.pop(self._end, None)


class _Message:
    """Inspects the messages of one call."""

    __slots__ = ("_header", "_left", "_steps", "_wanted")

    def __init__(self) -> None:
        self._steps = self._messages()
        self._left = 0
        """Bytes to skip before the generator gets the next byte."""
        self._header = bytearray()
        self._wanted = 0
        """Bytes to collect in `_header`."""
        next(self._steps)

    def feed(self, view: memoryview) -> None:
        """Inspect more bytes."""
        at = 0
        while at < len(view):
            if self._left:
                step = min(self._left, len(view) - at)
                self._left -= step
                at += step
            elif self._wanted:
                step = min(self._wanted, len(view) - at)
                self._header += view[at : at + step]
                self._wanted -= step
                at += step
                if not self._wanted:
                    check_metadata(bytes(self._header))
                    self._header.clear()
            else:
                self._steps.send(view[at])
                at += 1

    def _messages(self) -> Generator[None, int, None]:
        while True:
            if (yield):
                raise InputRefused("compressed gRPC messages")
            length = 0
            for _ in range(4):
                length = length << 8 | (yield)
            if length > MAX_MESSAGE:
                raise InputRefused(f"a message of {length} bytes: at most {MAX_MESSAGE} are accepted")
            while length > 0:
                tag, size = yield from self._varint()
                length -= size
                kind, field = tag & 7, (tag & 0xFFFFFFFF) >> 3  # like gRPC
                if kind == 0:
                    _, size = yield from self._varint()
                    length -= size
                    continue
                if kind not in (1, 2, 5):
                    raise InputRefused("malformed message")
                count = {1: 8, 5: 4}.get(kind, 0)
                if kind == 2:
                    count, size = yield from self._varint()
                    length -= size
                length -= count
                if length < 0:
                    raise InputRefused("malformed message")
                if kind == 2 and field == _DATA_HEADER and count <= MAX_HEADER:
                    self._wanted = count
                elif kind == 2 and field == _DATA_HEADER:
                    raise InputRefused(f"metadata of {count} bytes: at most {MAX_HEADER} are accepted")
                else:
                    self._left = count

    def _varint(self) -> Generator[None, int, tuple[int, int]]:
        value = shift = size = 0
        while True:
            byte = yield
            value |= (byte & 0x7F) << shift
            shift += 7
            size += 1
            if byte < 0x80:
                return value, size
            if size == 10:
                raise InputRefused("malformed message")


def check_metadata(data: bytes) -> None:
    """Raise InputRefused if this is the metadata of a record batch whose buffers are compressed.

    Other calls use this field for other data, which Arrow cannot parse either, so it is accepted.
    """
    try:
        message = unpack_from("<I", data, 0)[0]
        kind_at, header_at = _field(data, message, 1), _field(data, message, 2)
        if not kind_at or not header_at or data[kind_at] not in (_DICTIONARY_BATCH, _RECORD_BATCH):
            return
        batch = header_at + unpack_from("<I", data, header_at)[0]
        if data[kind_at] == _DICTIONARY_BATCH:
            at = _field(data, batch, 1)
            batch = at + unpack_from("<I", data, at)[0]
        compressed = _field(data, batch, 3)
    except (StructError, IndexError):
        return
    if compressed:
        raise InputRefused("record batches with compressed buffers: send them without compression")


def _field(data: bytes, table: int, number: int) -> int:
    """Return the offset of a field of a flatbuffers table; 0 if the field is missing."""
    vtable = table - unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise IndexError
    if 4 + 2 * number >= unpack_from("<H", data, vtable)[0]:
        return 0
    offset: int = unpack_from("<H", data, vtable + 4 + 2 * number)[0]
    return table + offset if offset else 0

"""Frames on the socket between the broker and a child process: a length, then a message in MessagePack."""

from __future__ import annotations

import asyncio
from struct import Struct as Layout
from typing import Any

from msgspec import Struct, msgpack

READ_AHEAD = 1024 * 1024
"""Maximum bytes of received and unhandled messages; beyond it, the other side has to wait."""

_LENGTH = Layout(">I")
_encoder = msgpack.Encoder()
encode = _encoder.encode


def frame(message: Struct) -> bytearray:
    """Return a message as a frame."""
    data = bytearray(_LENGTH.size)
    _encoder.encode_into(message, data, _LENGTH.size)
    _LENGTH.pack_into(data, 0, len(data) - _LENGTH.size)
    return data


def send(writer: asyncio.StreamWriter, message: Struct) -> None:
    """Send a message, unless the connection is closing."""
    if not writer.is_closing():
        writer.write(frame(message))


async def receive(reader: asyncio.StreamReader, decoder: msgpack.Decoder[Any]) -> Any:
    """Return the next message, or None at the end of the connection."""
    try:
        header = await reader.readexactly(_LENGTH.size)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    return decoder.decode(await reader.readexactly(*_LENGTH.unpack(header)))

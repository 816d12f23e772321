"""Frames on the socket between the broker and a process beside it.

A frame is a header with two lengths, a JSON object, and bytes that belong to it (`attached`), such as a
payload. The lengths come first: neither side searches for the end of a frame, and no message is too large for
the channel. What is too large for the broker is refused before it is sent.
"""

from __future__ import annotations

import asyncio
import json
from struct import Struct
from typing import Any, BinaryIO

Message = dict[str, Any]

_HEADER = Struct(">II")
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def frame(message: Message, attached: bytes = b"") -> bytes:
    """Return a message as a frame, without the attached bytes themselves: those are written after it."""
    # Text that is no UTF-8 was refused before; a lone surrogate must not end the channel all the same.
    data = _dumps(message).encode("utf-8", "surrogatepass")
    return _HEADER.pack(len(data), len(attached)) + data


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """Return the next message, with `attached` if there is any; None at the end of the channel."""
    try:
        header = await reader.readexactly(_HEADER.size)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    length, attached = _HEADER.unpack(header)
    message = _message(await reader.readexactly(length))
    if attached:
        message["attached"] = await reader.readexactly(attached)
    return message


def receive_blocking(file: BinaryIO) -> Message | None:
    """Return the next message of a blocking file, or None at its end."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    length, attached = _HEADER.unpack(header)
    message = _message(file.read(length))
    if attached:
        message["attached"] = file.read(attached)
    return message


def _message(data: bytes) -> Message:
    message: Message = json.loads(data.decode("utf-8", "surrogatepass"))
    return message

"""The bytes of a group: an envelope that every version of Pyrite can read, around what the group holds.

A group that is larger than the engine takes is split; each part has an envelope and a number of its own.

    magic (4) | format (1) | last part (1) | checksum (8) | cluster (8) | incarnation (8) | number (8)
    | size of the author's name (1) | author | part of the contents

The contents are a msgpack map, so that a later version can add to it, and the bytes of the messages.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from pyrite.broker.message import Batch, MixedBatch, Properties
from pyrite.errors import PyriteError

FORMAT = 1
"""The newest format that this version reads and writes."""
MAGIC = b"PyGr"
MAX_NAME = 255
"""Bytes of the name of a node."""
_ENVELOPE = struct.Struct("<4sBBQQQQB")
_CHECKED = 14
"""Where the bytes begin that the checksum covers."""
ENVELOPE_SIZE = _ENVELOPE.size + MAX_NAME
_SIZE = struct.Struct("<I")


class GroupError(PyriteError):
    """A group cannot be read; the text says why."""


class Envelope(NamedTuple):
    """One part of a group."""

    author: str
    incarnation: int
    """The sequence of the author's start group; 0 in the start group itself."""
    number: int
    """Counts the parts that an incarnation has appended, from 1; 0 in the start group."""
    is_last: bool
    """Whether the group ends with this part."""
    checksum: int
    contents: bytes


class Contents(msgspec.Struct, omit_defaults=True):
    """What a group holds."""

    position: int = 0
    """How far the author had applied the order when it made the group."""
    hash: int = 0
    """The hash of what it had applied."""
    items: list[list[Any]] = msgspec.field(default_factory=list)
    """Messages and operations, in order. An operation begins with its name, a message with its stream."""
    rows: list[list[Any]] = msgspec.field(default_factory=list)
    """Changed rows of the state: the number of the statement, and its values."""
    epochs: dict[str, int] = msgspec.field(default_factory=dict)
    """The epochs under which the author owns the sessions, consumers and sinks that the rows belong to."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Contents)


def cluster_number(name: str) -> int:
    """Return the number that stands for a cluster's name in envelopes."""
    return xxh3_64_intdigest(name.encode())


def seal(
    cluster: int, author: str, incarnation: int, number: int, is_last: bool, contents: bytes | memoryview
) -> bytes:
    """Return one part of a group as bytes."""
    name = author.encode()
    body = b"".join(
        [_ENVELOPE.pack(b"", 0, 0, 0, cluster, incarnation, number, len(name))[_CHECKED:], name, contents]
    )
    head = _ENVELOPE.pack(MAGIC, FORMAT, is_last, xxh3_64_intdigest(body), 0, 0, 0, 0)
    return head[:_CHECKED] + body


def unseal(cluster: int, data: bytes) -> Envelope:
    """Return a part from its bytes; raise GroupError if it is damaged, foreign, or of a later format."""
    if len(data) < _ENVELOPE.size or data[:4] != MAGIC:
        raise GroupError("the group is not of Pyrite: is the engine's stream used by another program?")
    _, form, is_last, checksum, of, incarnation, number, size = _ENVELOPE.unpack_from(data)
    if form > FORMAT:
        raise GroupError(
            f"the group has format {form}, this version of Pyrite reads up to {FORMAT}: upgrade this node"
        )
    if xxh3_64_intdigest(memoryview(data)[_CHECKED:]) != checksum:
        raise GroupError("the group does not match its checksum: the engine has altered it")
    if of != cluster:
        raise GroupError("the group belongs to a cluster of another name: use an engine stream of your own")
    at = _ENVELOPE.size + size
    author = data[_ENVELOPE.size : at].decode()
    return Envelope(author, incarnation, number, bool(is_last), checksum, data[at:])


def dump(contents: Contents, data: Sequence[bytes | memoryview]) -> bytes:
    """Return what a group holds as bytes; `data` are the bytes of its messages."""
    head = _encoder.encode(contents)
    return b"".join([_SIZE.pack(len(head)), head, *data])


def load(data: bytes) -> tuple[Contents, int]:
    """Return what a group holds, and where the bytes of its messages begin."""
    at = _SIZE.size + _SIZE.unpack_from(data)[0]
    try:
        return _decoder.decode(memoryview(data)[_SIZE.size : at]), at
    except msgspec.MsgspecError as error:
        raise GroupError(f"the group cannot be decoded: {error}") from None


# Messages


def dump_batch(batch: Batch, stream: str, time: int, epoch: int) -> list[Any]:
    """Return everything about a batch but its bytes."""
    properties = batch.properties
    mixed = None
    if isinstance(batch, MixedBatch):
        origins = None if batch.origins is None else list(batch.origins)
        mixed = [array("I", batch.starts).tobytes(), array("I", batch.ids_at).tobytes(), origins]
    return [
        stream,
        len(batch.data),
        time,
        epoch,
        batch.topic,
        batch.qos,
        batch.retain,
        batch.origin,
        batch.count,
        batch.stride,
        batch.payload_at,
        batch.form,
        batch.id_at,
        None if properties is None else _dump_properties(properties),
        None if batch.owner is None else batch.owner.key,
        mixed,
    ]


class Head(NamedTuple):
    """What `dump_batch` returned."""

    stream: str
    """The stream that captures the messages; "" if none does."""
    size: int
    """Bytes of the messages."""
    time: int
    """When they arrived, in microseconds since 1970."""
    epoch: int
    """The epoch of the publisher's session, if its QoS 2 messages count only under it; else 0."""
    topic: bytes
    qos: int
    retain: bool
    origin: str | None
    messages: int
    stride: int
    payload_at: int
    form: int
    id_at: int
    properties: list[Any] | None
    owner: str | None
    mixed: list[Any] | None


def load_batch(head: Head, data: bytes) -> Batch:
    """Return a batch; it has no expiry and no owner yet."""
    if head.mixed is not None:
        starts, ids_at = _numbers(head.mixed[0]), _numbers(head.mixed[1])
        ends = [*starts[1:], len(data)]
        topics = [
            data[start + (4 if end - start < 130 else 5) : id_at]
            for start, end, id_at in zip(starts, ends, ids_at, strict=True)
        ]
        origin = head.origin if head.mixed[2] is None else head.mixed[2]
        return MixedBatch(data, starts, topics, ids_at, head.payload_at, head.qos, origin, head.form)
    return Batch(
        head.topic,
        data,
        head.qos,
        head.retain,
        None if head.properties is None else _load_properties(head.properties),
        None,
        head.origin,
        head.messages,
        head.stride,
        head.payload_at,
        head.form,
        head.id_at,
    )


def _numbers(data: bytes) -> list[int]:
    return array("I", data).tolist()


def _dump_properties(properties: Properties) -> list[Any]:
    return [
        properties.payload_format,
        properties.message_expiry,
        properties.content_type,
        properties.response_topic,
        properties.correlation_data,
        properties.user_properties,
    ]


def _load_properties(values: list[Any]) -> Properties:
    payload_format, message_expiry, content_type, response_topic, correlation_data, pairs = values
    return Properties(
        payload_format,
        message_expiry,
        content_type,
        response_topic,
        correlation_data,
        tuple((key, value) for key, value in pairs),
    )

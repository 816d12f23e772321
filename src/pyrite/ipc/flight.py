"""The requests of the Flight process."""

from __future__ import annotations

from msgspec import Struct

from pyrite.ipc.messages import Admitted, Request


class LetIn(Struct):
    """An authenticated client, and the seconds until its token expires, if it has one."""

    caller: Admitted
    seconds: float | None


class Authenticate(Request[LetIn]):
    """Authenticate a client."""


class CheckRights(Request[None]):
    """Check that the caller has one of these rights on some topic, before any input is decoded."""

    rights: list[str]


class NameStreams(Request[list[str]]):
    """List the streams that the caller may read, at least in part."""


class BeginRead(Request[None]):
    """Begin a read of messages on these topics."""

    is_read = True
    topics: list[str]


class CheckRead(Request[None]):
    """Check that the caller may read messages on these topics."""

    topics: list[str]


class NoteReader(Request[None]):
    """Record how far a named reader of these topics has come."""

    name: str
    stream: str
    topics: list[str]
    offset: int


class StagePart(Request[str]):
    """Begin to stage a part of a sink, with messages on `topic`; the answer is the name of its file."""

    sink: str
    part: str
    topic: str | None


class CheckRoom(Request[None]):
    """Check that there is room to stage more for a sink."""

    sink: str


class CommitSink(Request[bool]):
    """Publish the staged parts of a sink as one batch; the answer is False if it was published before."""

    sink: str
    batch: int
    parts: list[str]


class AbortSink(Request[None]):
    """Discard staged parts of a sink or, without `parts`, the sink with all of its parts."""

    sink: str
    parts: list[str] | None

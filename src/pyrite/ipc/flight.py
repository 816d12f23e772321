"""The requests of the Flight process."""

from __future__ import annotations

from msgspec import Struct

from pyrite.ipc.messages import Admitted, Request


class LetIn(Struct):
    """A client that was let in, and for how many seconds, if its token expires."""

    caller: Admitted
    seconds: float | None


class Authenticate(Request[LetIn]):
    """Let a client in."""


class CheckRights(Request[None]):
    """Whether the caller has one of these rights on some topic, before anything is decoded."""

    rights: list[str]


class NameStreams(Request[list[str]]):
    """The names of the streams from which the caller may read something."""


class BeginRead(Request[None]):
    """Begin a read of messages of these topics."""

    is_read = True
    topics: list[str]


class CheckRead(Request[None]):
    """Whether the caller may read messages of these topics."""

    topics: list[str]


class Stage(Request[str]):
    """Begin to stage a part of a sink, for messages on `topic`; the answer is the name of its file."""

    sink: str
    part: str
    topic: str | None


class CheckRoom(Request[None]):
    """Whether more may be staged for a sink."""

    sink: str


class Commit(Request[bool]):
    """Publish the staged parts of a sink as one batch; answer whether it was not published before."""

    sink: str
    batch: int
    parts: list[str]


class Abort(Request[None]):
    """Discard staged parts of a sink, or without `parts` the sink with all of its parts."""

    sink: str
    parts: list[str] | None

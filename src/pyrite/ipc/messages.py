"""The messages between the broker and a child process."""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, get_args

from msgspec import Raw, Struct

from pyrite.process.tls import TlsSettings

A = TypeVar("A")
R = TypeVar("R")


class LogIn(Enum):
    """Whether a request is answered only to a caller that was let in."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    """A caller that gives no name is answered too, perhaps with less."""
    NONE = "none"
    """Nobody is asked who they are."""


class Request(Struct, Generic[A], tag=True, forbid_unknown_fields=True):
    """A request of a child process; `A` is the type of its answer."""

    log_in: ClassVar[LogIn] = LogIn.REQUIRED
    is_read: ClassVar[bool] = False
    """Whether a read begins with the request: it counts for the caller's quota until the child ends it."""


class Listing(Struct):
    """An answer with a list, which comes in several parts if it is long."""

    list_name: ClassVar[str]
    """The field with the list."""


@cache
def answer_type(kind: type[Request[Any]]) -> Any:
    """Return the type of the answers to a kind of request."""
    (base,) = kind.__orig_bases__  # type: ignore[attr-defined]
    return get_args(base)[0]


# Who makes a request


class Given(Struct, tag=True, frozen=True):
    """What a client has shown of who it is. A token is a password without a user name."""

    username: str | None
    password: str | None
    certificate: str | None
    """The user's name in the client's certificate."""
    address: str


class Admitted(Struct, tag=True, frozen=True):
    """A client that the broker has let in before."""

    username: str | None
    groups: list[str]
    address: str


Caller = Given | Admitted


# From the child


class Ask(Struct, Generic[R], tag=True):
    """A request, with a number of its own."""

    number: int
    caller: Caller | None
    request: R


class Cancel(Struct, tag=True):
    """The answer to a request is no longer wanted."""

    number: int


class EndRead(Struct, tag=True):
    """The read that began with a request has ended."""

    number: int


class Ready(Struct, tag=True):
    """The child serves its listener, at this port."""

    port: int


class Failed(Struct, tag=True):
    """The child cannot serve its listener."""

    reason: str


class RefusedConnection(Struct, tag=True):
    """A connection that the child refused before its first request."""

    address: str
    by_certificate: bool
    """Whether its certificate is the reason, or that it showed none."""
    reason: str


Notice = Cancel | EndRead | Ready | Failed | RefusedConnection


# From the broker


class Answer(Struct, tag=True):
    """The answer to a request, or a part of it."""

    number: int
    is_last: bool
    body: Raw


class Refusal(Struct, tag=True):
    """Why a request is not answered."""

    number: int
    status: int
    detail: str
    retry_after: float | None


class RightsChanged(Struct, tag=True):
    """Users or rules have changed: clients that were let in before may not be let in again."""


class NewCertificates(Struct, tag=True):
    """New certificates; if `trust_changed`, also new authorities for those of clients."""

    tls: TlsSettings
    trust_changed: bool


FromBroker = Answer | Refusal | RightsChanged | NewCertificates


class LogSettings(Struct):
    """How a process writes its log: a level for each part of the broker, and the format."""

    levels: str
    format: str


class HttpSettings(Struct):
    """What the HTTP process needs to start: the first message that it gets."""

    data: str | None
    host: str
    port: int
    is_local: bool
    """Whether only this machine can reach the listener."""
    public_url: str
    logging: LogSettings
    tls: TlsSettings | None
    max_payload: int
    max_connections: int
    max_connections_per_address: int
    connect_timeout: float


class FlightSettings(Struct):
    """What the Flight process needs to start: the first message that it gets."""

    data: str
    host: str
    port: int
    logging: LogSettings
    tls: TlsSettings | None
    max_connections: int
    connect_timeout: float

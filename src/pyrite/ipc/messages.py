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
    """Whether a request needs an authenticated caller."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    """A caller without credentials gets an answer, too, perhaps a shorter one."""
    NONE = "none"
    """Credentials are not checked."""


class Request(Struct, Generic[A], tag=True, forbid_unknown_fields=True):
    """A request of a child process; `A` is the type of its answer."""

    log_in: ClassVar[LogIn] = LogIn.REQUIRED
    is_read: ClassVar[bool] = False
    """True if the request begins a read, which counts for the caller's quota until the child ends it."""


class Listing(Struct):
    """An answer with a list, sent in several parts if it is long."""

    list_name: ClassVar[str]
    """The name of the field with the list."""


@cache
def answer_type(kind: type[Request[Any]]) -> Any:
    """Return the type of the answers to a kind of request."""
    (base,) = kind.__orig_bases__  # type: ignore[attr-defined]
    return get_args(base)[0]


# Callers


class Given(Struct, tag=True, frozen=True):
    """The credentials of a client. A token is a password without a user name."""

    username: str | None
    password: str | None
    certificate: str | None
    """The user's name in the client's certificate."""
    address: str


class Admitted(Struct, tag=True, frozen=True):
    """A client that the broker has authenticated before."""

    username: str | None
    groups: list[str]
    address: str


Caller = Given | Admitted


# From the child


class Ask(Struct, Generic[R], tag=True):
    """A request with its number."""

    number: int
    caller: Caller | None
    request: R


class Cancel(Struct, tag=True):
    """The child no longer needs the answer to a request."""

    number: int


class EndRead(Struct, tag=True):
    """The read that began with a request has ended."""

    number: int


class Failed(Struct, tag=True):
    """The child cannot serve its listener."""

    reason: str


class RefusedConnection(Struct, tag=True):
    """A connection that the child refused before its first request."""

    address: str
    by_certificate: bool
    """True if the client's certificate was invalid or missing."""
    reason: str


Notice = Cancel | EndRead | Failed | RefusedConnection


# From the broker


class Answer(Struct, tag=True):
    """The answer to a request, or one part of it."""

    number: int
    is_last: bool
    body: Raw


class ErrorAnswer(Struct, tag=True):
    """The refusal of a request."""

    number: int
    status: int
    detail: str
    retry_after: float | None


class RightsChanged(Struct, tag=True):
    """Users or rules have changed: clients must be authenticated again."""


class NewCertificates(Struct, tag=True):
    """New certificates and, if `trust_changed`, new authorities for client certificates."""

    tls: TlsSettings
    trust_changed: bool


FromBroker = Answer | ErrorAnswer | RightsChanged | NewCertificates


class LogSettings(Struct):
    """The log output of a process: the level of each part of the broker, and the format."""

    levels: str
    format: str


class HttpSettings(Struct):
    """The settings of the HTTP process: the first message it receives."""

    data: str | None
    sockets: list[int]
    """The descriptors of the listening sockets."""
    host: str
    is_local: bool
    """True if only this machine can reach the listener."""
    public_url: str
    logging: LogSettings
    tls: TlsSettings | None
    max_payload: int
    max_connections: int
    max_connections_per_address: int
    connect_timeout: float


class FlightSettings(Struct):
    """The settings of the Flight process: the first message it receives."""

    data: str
    sockets: list[int]
    """The descriptors of the listening sockets."""
    logging: LogSettings
    tls: TlsSettings | None
    max_connections: int
    connect_timeout: float

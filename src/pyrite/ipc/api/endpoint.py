"""What the requests of the API have in common: endpoints, pages, payloads, checks of texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from pyrite.ipc.messages import Listing, Request

A = TypeVar("A")

MAX_PAGE = 1_000
"""Entries of a page."""
MAX_TEXT_BYTES = 65_535
"""Bytes of a text that MQTT can carry."""


class Endpoint(NamedTuple):
    """The path of a request."""

    method: str
    path: str
    """With at most one name in braces, which may contain slashes."""
    errors: tuple[int, ...] = ()
    """Statuses of refusals, besides those that every endpoint has."""
    answer: Any = None
    """The type of the JSON answer, where the HTTP process makes it of more than the broker's answer."""
    body_right: str = ""
    """The body is read only from a client that has this right on some topic."""


class ApiRequest(Request[A]):
    """A request of the HTTP API."""

    endpoint: ClassVar[Endpoint]


Count = Annotated[int, Meta(ge=0)]
Qos = Annotated[int, Meta(ge=0, le=2)]
Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE, description="How many entries, at most.")]
After = Annotated[str, Meta(description="The `next` of the page before.")]
Next = Annotated[str | None, Meta(description="The `after` of the next page; null on the last one.")]
Filter = Annotated[str, Meta(min_length=1, description="A topic filter.")]


class Shown(Struct):
    """An answer of the API."""

    def show_text(self) -> None:
        """Show payloads as text where they are UTF-8. Not in the broker: it takes time."""


class Page(Listing, Shown):
    """Some entries of a long list."""

    def show_text(self) -> None:
        """Show payloads of all entries as text where they are UTF-8."""
        for entry in self._entries():
            entry.show_text()

    def _entries(self) -> Iterator[Shown]:
        yield from getattr(self, self.list_name)


class Payload(Shown, kw_only=True):
    """A payload: as text if it is UTF-8, else in base64."""

    payload: Annotated[str, Meta(description="The payload, if it is UTF-8.")] | UnsetType = UNSET
    payload_base64: Annotated[bytes, Meta(description="The payload in base64, otherwise.")] | UnsetType = (
        UNSET
    )

    def show_text(self) -> None:
        """Show the payload as text if it is UTF-8."""
        if self.payload_base64 is not UNSET:
            try:
                self.payload = self.payload_base64.decode()
            except UnicodeDecodeError:
                return
            self.payload_base64 = UNSET


class Body(Struct, kw_only=True, forbid_unknown_fields=True):
    """The JSON body of a request."""

    def check(self) -> None:
        """Raise ValueError, or Problem, for what the types cannot express. In the HTTP process."""


class ProblemDetails(Struct):
    """What is wrong (RFC 9457)."""

    status: Annotated[int, Meta(ge=400, le=599)]
    title: str
    detail: Annotated[str, Meta(description="What is wrong, and what was expected.")]
    type: str = "about:blank"


def check_texts(**texts: str | UnsetType) -> None:
    """Raise ValueError for a text that MQTT cannot carry."""
    for name, text in texts.items():
        if text is UNSET:
            continue
        if "\0" in text:
            raise ValueError(f"{name}: expected a string without the null character")
        if encoded_size(name, text) > MAX_TEXT_BYTES:
            raise ValueError(f"{name}: expected at most {MAX_TEXT_BYTES} bytes")


def encoded_size(name: str, text: str) -> int:
    """Return the bytes of a text; ValueError if UTF-8 cannot encode it."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{name}: expected characters that UTF-8 can encode") from None

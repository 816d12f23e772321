"""Shared by the requests of the API: endpoints, pages, payloads, checks of texts."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from pyrite.ipc.messages import Listing, Request

A = TypeVar("A")

MAX_PAGE = 1_000
"""Maximum entries of a page."""
MAX_TEXT_BYTES = 65_535
"""Maximum bytes of a text in MQTT."""


class Endpoint(NamedTuple):
    """The path of a request."""

    method: str
    path: str
    """A path with at most one name in braces; the name may contain slashes."""
    errors: tuple[int, ...] = ()
    """Statuses of refusals, besides those of every endpoint."""
    answer: Any = None
    """The type of the JSON answer, if it differs from the broker's answer."""
    body_right: str = ""
    """The right on some topic without which a body is not even read."""


class ApiRequest(Request[A]):
    """A request of the HTTP API."""

    endpoint: ClassVar[Endpoint]


Count = Annotated[int, Meta(ge=0)]
Qos = Annotated[int, Meta(ge=0, le=2)]
Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE, description="Maximum number of entries.")]
After = Annotated[str, Meta(description="The `next` of the previous page.")]
Next = Annotated[str | None, Meta(description="The `after` of the next page; null on the last one.")]
Filter = Annotated[str, Meta(min_length=1, description="A topic filter.")]


class Shown(Struct):
    """An answer of the API."""

    def show_text(self) -> None:
        """Show UTF-8 payloads as text. Called in the HTTP process, because it takes time."""


class Page(Listing, Shown):
    """Some entries of a long list."""

    def show_text(self) -> None:
        for entry in getattr(self, self.list_name):
            entry.show_text()


class Payload(Shown, kw_only=True):
    """A payload: as text if it is UTF-8, otherwise in base64."""

    payload: Annotated[str, Meta(description="The payload, if it is UTF-8.")] | UnsetType = UNSET
    payload_base64: Annotated[bytes, Meta(description="The payload in base64, otherwise.")] | UnsetType = (
        UNSET
    )

    def show_text(self) -> None:
        if self.payload_base64 is not UNSET:
            try:
                self.payload = self.payload_base64.decode()
            except UnicodeDecodeError:
                return
            self.payload_base64 = UNSET


class Body(Struct, kw_only=True, forbid_unknown_fields=True):
    """The JSON body of a request."""

    def check(self) -> None:
        """Raise ValueError or Problem for values that the types allow and the API does not."""


class ProblemDetails(Struct):
    """An error (RFC 9457)."""

    status: Annotated[int, Meta(ge=400, le=599)]
    title: str
    detail: Annotated[str, Meta(description="What is wrong, and what was expected.")]
    type: str = "about:blank"


def check_texts(**texts: str | UnsetType) -> None:
    """Raise ValueError for a text that MQTT cannot transmit."""
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

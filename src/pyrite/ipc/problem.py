"""The exception for a request that is refused or fails."""

from __future__ import annotations

from pyrite.errors import PyriteError


class Problem(PyriteError):
    """A refused request: an HTTP status, and a text that says what is wrong and what is expected."""

    def __init__(
        self, status: int, detail: str, retry_after: float | None = None, close: bool = False
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.retry_after = retry_after
        """Seconds after which a retry may succeed, if known."""
        self.close = close
        """True if the HTTP connection is closed after the answer."""

"""Accounts: the use of shared resources by one user, and the user's publish budget.

An account belongs to a user name, or to a network address where names are not authenticated (see quotas.py).
Sessions, subscriptions, consumers and retained messages are counted where they are created and removed.
Messages are metered, once per batch, only for accounts with a quota on rates or on stored bytes.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

from pyrite.broker.timers import NO_SLOT

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.broker.journal import Stream
    from pyrite.broker.turns import Turn

SECONDS_OF_BURST = 1.0
"""Capacity of a rate budget, in seconds of that rate."""
MAX_WOKEN = 64
"""Publishers of one account that continue at one tick; the others stay in the queue."""
MAX_SPANS = 16
"""Spans of one stream in an account's ledger of stored bytes. Beyond twice that, neighbours are merged: each
state change writes the whole ledger, and stored bytes are freed one span at a time."""
WINDOW = 1.0
"""Seconds over which the reported rate is measured."""

QUOTAS = (
    "sessions",
    "connections",
    "subscriptions",
    "consumers",
    "retained_messages",
    "retained_bytes",
    "stored_bytes",
    "message_rate",
    "byte_rate",
    "concurrent_reads",
)
"""The quotas of a user: the keys of each table of [quotas]."""


class Span:
    """Consecutive messages of one account in a stream: the offset after the last message, and their bytes."""

    __slots__ = ("end", "size")

    def __init__(self, end: int, size: int) -> None:
        self.end = end
        self.size = size


class Account:
    """How much of each quota one user or address uses, and its limits."""

    def __init__(self, broker: Broker, key: str, groups: frozenset[str]) -> None:
        self.broker = broker
        self.key = key
        """`user:NAME` or `address:NETWORK`, the key in the stored state."""
        self.groups = groups
        """Groups that the log-in granted, in addition to those configured for the user's name."""
        self.slot = NO_SLOT
        self.limits: dict[str, float] = dict.fromkeys(QUOTAS, inf)
        """The quotas in force, by name; infinite without a quota."""
        self.sessions = 0
        self.connections = 0
        self.subscriptions = 0
        self.consumers = 0
        self.retained_messages = 0
        self.retained_bytes = 0
        self.concurrent_reads = 0
        self.stored_bytes = 0
        """Bytes of topics and payloads in the log, published since the account has a quota on them."""
        self.stored: dict[Stream, deque[Span]] = {}
        """The spans of the stored bytes in each stream."""
        self.meter: Account | None = None
        """The account itself if its messages are metered, else None; read by connections."""
        self._messages = 0.0
        self._bytes = 0.0
        """The remaining budgets; negative after a message larger than the budget."""
        self._refilled = broker.now
        self._waiting: deque[Turn] = deque()
        """Publishers that wait for budget, first come, first served."""
        self._window_began = broker.now
        self._window = (0, 0)
        self._last_rate = (0.0, 0.0)

    @property
    def user(self) -> str | None:
        """The user's name; None for an address."""
        kind, _, name = self.key.partition(":")
        return name if kind == "user" else None

    @property
    def address(self) -> str | None:
        """The address or network; None for a user."""
        kind, _, name = self.key.partition(":")
        return name if kind == "address" else None

    def set_limits(self, limits: dict[str, float]) -> None:
        """Replace the quotas in force."""
        self._refill()
        self.limits = limits
        # A budget starts full, and never exceeds its capacity.
        metered = any(limits[name] < inf for name in ("stored_bytes", "message_rate", "byte_rate"))
        if metered and self.meter is None:
            self._messages, self._bytes = self._most_messages, self._most_bytes
        self._messages = min(self._messages, self._most_messages)
        self._bytes = min(self._bytes, self._most_bytes)
        if limits["message_rate"] == inf:
            self._messages = inf
        if limits["byte_rate"] == inf:
            self._bytes = inf
        self.meter = self if metered else None
        if self._waiting:
            self.broker.timers.set(self, self.broker.now)

    def refusal(self, name: str, more: int = 1) -> str:
        """Return why the account may not have `more` of a quota; empty if it may."""
        limit = self.limits[name]
        used: int = getattr(self, name)
        if used + more <= limit:
            return ""
        what = name.replace("_", " ")
        return f"quota exceeded: {what} of {self.label}: {used} in use, at most {limit:.0f} allowed"

    @property
    def label(self) -> str:
        """The account's name in refusals."""
        return f"user {self.user!r}" if self.user is not None else f"address {self.address}"

    @property
    def is_idle(self) -> bool:
        """Whether the account holds nothing, so that it can be forgotten."""
        self._refill()
        return not (
            self.sessions
            or self.connections
            or self.consumers
            or self.retained_messages
            or self.concurrent_reads
            or self._waiting
            or self.stored
            or self._messages < self._most_messages
            or self._bytes < self._most_bytes
        )

    # Rates

    @property
    def _most_messages(self) -> float:
        return max(1.0, self.limits["message_rate"] * SECONDS_OF_BURST)

    @property
    def _most_bytes(self) -> float:
        return max(1.0, self.limits["byte_rate"] * SECONDS_OF_BURST)

    def _refill(self) -> None:
        now = self.broker.now
        passed = now - self._refilled
        if passed > 0:
            self._refilled = now
            self._messages = min(self._most_messages, self._messages + passed * self.limits["message_rate"])
            self._bytes = min(self._most_bytes, self._bytes + passed * self.limits["byte_rate"])

    @property
    def is_spent(self) -> bool:
        """Whether publishers must wait: the budget is below one message or one byte."""
        if self._messages >= 1 and self._bytes > 0:
            return False
        self._refill()
        return self._messages < 1 or self._bytes <= 0

    @property
    def seconds_to_wait(self) -> float:
        """Seconds until the budget allows a message; 0 if it does now."""
        if not self.is_spent:
            return 0.0
        return max(
            (1 - self._messages) / self.limits["message_rate"] if self._messages < 1 else 0.0,
            (1 - self._bytes) / self.limits["byte_rate"] if self._bytes <= 0 else 0.0,
        )

    def grant(self, count: int, size: int) -> int:
        """Take up to `count` messages of `size` bytes each from the budget; return the number, at least
        one."""
        self._refill()
        if self._messages < count:
            count = max(1, int(self._messages))
        if self._bytes < count * size:
            count = max(1, int(self._bytes // size))
        self.charge(count, count * size)
        return count

    def charge(self, count: int, size: int) -> None:
        """Take messages of `size` bytes in all from the budget, which may become negative."""
        self._messages -= count
        self._bytes -= size
        self._measure(count, size)

    def wait(self, turn: Turn) -> None:
        """Queue a publisher until the budget allows a message."""
        self._waiting.append(turn)
        self.broker.figures.publishers_throttled += 1
        if self.slot == NO_SLOT:
            self.broker.timers.set(self, self.broker.now + self.seconds_to_wait)

    def due(self) -> None:
        """Let publishers continue as far as the budget allows."""
        if not self.is_spent:
            woken = MAX_WOKEN if self._messages == inf else min(MAX_WOKEN, max(1, int(self._messages)))
            for _ in range(min(woken, len(self._waiting))):
                self.broker.turns.add(self._waiting.popleft())
        if self._waiting:
            self.broker.timers.set(self, self.broker.now + self.seconds_to_wait)

    def _measure(self, count: int, size: int) -> None:
        passed = self.broker.now - self._window_began
        if passed >= WINDOW:
            self._last_rate = (self._window[0] / passed, self._window[1] / passed)
            self._window, self._window_began = (0, 0), self.broker.now
        self._window = (self._window[0] + count, self._window[1] + size)

    @property
    def rate(self) -> tuple[float, float]:
        """Recently granted messages and bytes per second."""
        if self.broker.now - self._window_began >= 2 * WINDOW:
            return 0.0, 0.0
        self._measure(0, 0)
        return self._last_rate

    # Stored bytes

    def may_store(self, size: int) -> bool:
        """Return whether the log may store `size` more bytes of this account."""
        limit = self.limits["stored_bytes"]
        if self.stored_bytes + size <= limit:
            return True
        self.release_dropped()
        return self.stored_bytes + size <= limit

    def store(self, stream: Stream, end: int, size: int) -> None:
        """Record bytes stored in a stream, the last message before offset `end`."""
        spans = self.stored.setdefault(stream, deque())
        self.stored_bytes += size
        most = max(1, self.stored_bytes // MAX_SPANS)
        if spans and spans[-1].size + size <= most:
            spans[-1].end = end
            spans[-1].size += size
        else:
            spans.append(Span(end, size))
            if len(spans) > 2 * MAX_SPANS:
                merged = deque(
                    [
                        Span(second.end, first.size + second.size)
                        for first, second in zip(list(spans)[0::2], list(spans)[1::2], strict=False)
                    ]
                )
                if len(spans) % 2:
                    merged.append(spans[-1])
                self.stored[stream] = merged
        self.broker.journal.state.save_stored(self)

    def unstore(self, stream: Stream, end: int, size: int) -> None:
        """Revert `store` for messages that could not be written."""
        for span in self.stored.get(stream, ()):
            if span.end >= end:
                taken = min(size, span.size)
                span.size -= taken
                self.stored_bytes -= taken
                break
        self.broker.journal.state.save_stored(self)

    def release_dropped(self) -> None:
        """Subtract messages that retention has dropped."""
        for stream, spans in list(self.stored.items()):
            first = self.broker.journal.earliest(stream)
            if spans[0].end > first:
                continue
            while spans and spans[0].end <= first:
                self.stored_bytes -= spans.popleft().size
            if not spans:
                del self.stored[stream]
            self.broker.journal.state.save_stored(self)

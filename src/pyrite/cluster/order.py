"""The replicated log as the nodes see it: one order of groups, kept by a quorum.

Implemented by an engine (NATS JetStream), and in memory for tests of the replicated state machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Appended(NamedTuple):
    """The outcome of an append."""

    sequence: int | None
    """Place of the group in the order, counted from 1; None if it is unknown whether it has one."""
    error: str = ""
    """Why the engine did not confirm the append. The group may still turn up in the order."""


class Position(NamedTuple):
    """What the engine holds."""

    first: int
    """The oldest sequence that can still be read."""
    last: int


class OrderedLog(ABC):
    """One order of groups for all nodes. No call blocks; callbacks run in the event loop's thread."""

    @abstractmethod
    def append(self, data: bytes, identity: str, done: Callable[[Appended], object]) -> None:
        """Append a group; `done` is called when a quorum has synced it, or the engine did not say so in time.

        It is never called within `append`.

        Groups of one node may be ordered differently from how they were appended, or twice, after a failure:
        nodes apply a group only if its number follows that of its author's last. `identity` lets the engine
        drop a repeated append; an author that appends a group again gives it another identity.
        """

    @property
    @abstractmethod
    def max_size(self) -> int:
        """The largest group in bytes. Nodes split larger ones."""

    @abstractmethod
    def follow(
        self, after: int, deliver: Callable[[int, bytes], object], lost: Callable[[int], object]
    ) -> None:
        """Call `deliver(sequence, data)` for every group after a sequence, in order, without gaps, for ever.

        After a lost connection the engine continues where it stopped. If it does not hold the next group any
        longer, or has lost groups and never will, it calls `lost` with the oldest sequence that it holds, and
        nothing else.
        """

    @abstractmethod
    def pause(self) -> None:
        """Deliver nothing until `resume`: the node has as much to apply as it may hold."""

    @abstractmethod
    def resume(self) -> None:
        """Deliver again."""

    @abstractmethod
    def position(self, answer: Callable[[Position | None], object]) -> None:
        """Ask a quorum for what the engine holds; None if there is no quorum."""

    @property
    @abstractmethod
    def has_quorum(self) -> bool:
        """Whether a quorum confirmed anything within the last seconds."""

    @abstractmethod
    def hold_lease(self, key: str, value: bytes) -> None:
        """Keep a lease alive, that others see with its value, until the process ends."""

    @property
    @abstractmethod
    def leases(self) -> Mapping[str, bytes]:
        """All leases that have not expired, by key."""

    @abstractmethod
    def when_leases_change(self, call: Callable[[], object]) -> None:
        """Call whenever a lease appears, changes or expires."""

    @abstractmethod
    async def close(self) -> None:
        """Release the lease, and stop."""

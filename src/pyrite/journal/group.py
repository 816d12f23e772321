"""A group: the messages of each stream, and the state changes, that are committed together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyrite.broker.journal import Done, Fault, Stream
from pyrite.broker.message import Batch
from pyrite.journal.changes import Changes
from pyrite.journal.faults import fault_of
from pyrite.journal.gathering import Gathering


class Waiter(NamedTuple):
    """What to do once a group is durable: route a batch and call its `done`, or make a call."""

    batch: Batch | None
    done: Done | None
    call: Callable[[], object] | None = None


class StateCommit:
    """State changes that are committed in one transaction."""

    def __init__(self, changes: Changes, noted: int, waiters: list[Callable[[], object]]) -> None:
        self.changes = changes
        self.noted = noted
        """The number of changes, as counted for back-pressure."""
        self.waiters = waiters
        """Called when the changes are durable."""
        self.may_begin = threading.Event()
        """Set when the messages of the group have been written, or could not be."""
        self.fault: Fault | None = None


class Group:
    """Messages and state changes that are committed together."""

    def __init__(self) -> None:
        self.gathered: dict[Stream, Gathering] = {}
        self.unsafe: list[tuple[Stream, Batch, Sequence[int]]] = []
        """QoS 2 messages of durable sessions, with their packet ids."""
        self.waiters: list[Waiter] = []
        self.size = 0
        """Bytes of its messages."""
        self.since = 0.0
        """When it was first found to have no waiter; 0 if it was not."""
        self.waits = False
        """Whether a waiter depends on it."""
        self.faults: dict[Stream, Fault] = {}
        self.state: StateCommit | None = None
        """State changes that are committed after its messages, if any."""

    def __bool__(self) -> bool:
        return bool(self.gathered or self.waiters)


def fail_group(group: Group, error: Exception) -> Group:
    """Fail every waiter of a group whose write may be partial."""
    group.faults = {stream: fault_of(error, stream) for stream in group.gathered}
    return group

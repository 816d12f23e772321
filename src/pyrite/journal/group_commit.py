"""Group commit: collects messages until the previous group is written, then has them written and settled.

All messages that arrive while one group is being written form the next: per stream one write and one
fdatasync. State changes are committed with a group when they are due, in a transaction that begins when the
group's messages have been written, so the state never refers to a message that is not in the log. Calls that
wait for the state continue after the transaction; publishers wait for the messages alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pyrite.broker.journal import Done, Stream
from pyrite.broker.message import Batch
from pyrite.journal.faults import STATE, Faults, Subject
from pyrite.journal.gathering import Gathering
from pyrite.journal.group import Group, StateCommit, Waiter
from pyrite.journal.settling import Settling
from pyrite.journal.state_changes import RecordedChanges

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.broker.journal import Fault

MAX_DELAY = 0.05
"""Seconds for which messages that no publisher waits for may gather before they are written."""
MAX_DELAYED_BYTES = 8 * 1024 * 1024
"""Bytes of such messages that are written without further delay."""
MAX_PENDING_BYTES = 64 * 1024 * 1024
"""Bytes that may wait to be written before the broker stops reading from clients."""
MAX_DELAYED_CHANGES = 512
"""State changes that are committed without further delay."""
MAX_CHANGES = 4_096
"""State changes that may wait before the broker stops reading from clients that cause more."""
MAX_CHANGES_OF_ALL = 4 * MAX_CHANGES
"""State changes that may wait before it stops reading from all clients: settling causes some, too."""


class GroupWriter(Protocol):
    """Makes groups durable, one at a time."""

    def write(
        self,
        group: Group,
        written: Callable[[Group], object],
        committed: Callable[[StateCommit], object],
    ) -> None:
        """Make a group durable; call `written` for its messages, then `committed` for its state changes.

        Both are called in the event loop's thread.
        """


class GroupCommit:
    """Collects groups, has them written, and settles them."""

    def __init__(
        self,
        writer: GroupWriter,
        state: RecordedChanges,
        wall: Callable[[], float],
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], object]], object] | None,
        is_committed: Callable[[Stream, int], object],
    ) -> None:
        self._writer = writer
        self._state = state
        self._clock = clock
        self._later = later
        """Calls something after some seconds; without it, messages are not delayed."""
        self._is_committed = is_committed
        """Called with the end of what was written of a stream."""
        self.full = False
        self.faults = Faults()
        self.group = Group()
        """The group that is being collected."""
        self.unsettled: deque[Group] = deque()
        """Groups that are being written or settled."""
        self.is_writing = False
        self.pending_bytes = 0
        """Bytes of messages that are not written and settled."""
        self.arrived_bytes = 0
        """Bytes of messages that have arrived since `take_arrived` was called."""
        self.state_commit: StateCommit | None = None
        """State changes that are being committed, until all their waiters have been called."""
        self.state_is_due = False
        """Whether the state changes are to be committed with the next group."""
        self._state_waiters: list[Callable[[], object]] = []
        """Waiters for state changes that are not being committed yet."""
        self.arrival: Callable[[], int] = lambda: int(wall() * 1e6)
        """Returns the time that messages get, in microseconds since 1970."""
        self.last_time = 0
        """The time of the last message: each batch has a later one than the batch before it."""
        self._is_delayed = False

    def begin(self, broker: Broker) -> None:
        """Serve a broker."""
        self._broker = broker
        self.settling = Settling(broker, self.publisher_paused)

    # Collecting

    def append(
        self, stream: Stream, batch: Batch, done: Done | None, packet_ids: Sequence[int] | None
    ) -> None:
        """Append a batch to a stream. HOT."""
        batch.stream = stream
        batch.offset = stream.next_offset
        stream.next_offset += batch.count
        now = self.arrival()
        if now <= self.last_time:
            now = self.last_time + 1
        self.last_time = now
        group = self.group
        gathering = group.gathered.get(stream)
        if gathering is None:
            gathering = group.gathered[stream] = Gathering()
            self._broker.wake()
        began = self._clock()
        waited = batch.qos > 0 or done is not None
        gathering.add(batch, now, packet_ids, waited)
        self._blocked(began)
        size = len(batch.data)
        group.size += size
        self.pending_bytes += size
        self.arrived_bytes += size
        if waited:
            group.waiters.append(Waiter(batch, done))
            group.waits = True
            if packet_ids is not None:
                group.unsafe.append((stream, batch, packet_ids))
        if self.pending_bytes > MAX_PENDING_BYTES:
            self.full = True

    def _blocked(self, began: float) -> None:
        """Record for how long the event loop was blocked."""
        took = self._clock() - began
        if took > self._broker.figures.longest_log_block:
            self._broker.figures.longest_log_block = took

    def in_turn(self, call: Callable[[], object]) -> None:
        """Call when all earlier messages have been settled."""
        if self.group.waits or any(group.waits for group in self.unsettled):
            self.group.waiters.append(Waiter(None, None, call))
            self.group.waits = True
            self._broker.wake()
        else:
            call()

    def after(self, call: Callable[[], object]) -> None:
        """Call when all messages and state changes so far are durable."""
        if not self._state.has_changes and self.state_commit is None and not self._state_waiters:
            self.in_turn(call)
            return
        self._state_waiters.append(call)
        if STATE not in self.faults:  # else it is retried every second
            self.state_is_due = True
            self._broker.wake()

    def take_arrived(self) -> int:
        """Return how many bytes of messages have arrived since the last call."""
        arrived, self.arrived_bytes = self.arrived_bytes, 0
        return arrived

    # Back-pressure

    def count_change(self) -> None:
        """Pause the client that causes more state changes than may wait."""
        if self._waiting_changes() > MAX_CHANGES:
            self.full = True

    def publisher_paused(self) -> None:
        """Let other clients continue, once the one that caused too many state changes is paused."""
        self.full = self.pending_bytes > MAX_PENDING_BYTES or self._waiting_changes() > MAX_CHANGES_OF_ALL

    def _waiting_changes(self) -> int:
        return self._state.noted + (0 if self.state_commit is None else self.state_commit.noted)

    def _make_room(self) -> None:
        """Resume paused publishers once half of the room is free."""
        if self.pending_bytes < MAX_PENDING_BYTES // 2 and self._waiting_changes() < MAX_CHANGES // 2:
            self.full = False
            self._broker.turns.journal_has_room()

    # Committing

    def kick(self) -> None:
        """Write the group, unless one is being written, or it may be delayed."""
        group = self.group
        if self._state.number_of_rows >= MAX_DELAYED_CHANGES and STATE not in self.faults:
            self.state_is_due = True
        with_state = self.state_is_due and self.state_commit is None
        if self.is_writing or not (group or with_state):
            return
        if not group.waits and not with_state and self._may_delay(group):
            return
        self.cut(with_state)
        self.is_writing = True
        self.unsettled.append(group)
        self._writer.write(group, self._written, self._committed)

    def _may_delay(self, group: Group) -> bool:
        """Return whether a group without waiters may wait for more messages; if so, set the timer."""
        if self._later is None or group.size >= MAX_DELAYED_BYTES:
            return False
        if not group.since:
            group.since = self._clock()
        if self._clock() - group.since >= MAX_DELAY:
            return False
        if not self._is_delayed:
            self._is_delayed = True
            self._later(MAX_DELAY, self._delay_over)
        return True

    def _delay_over(self) -> None:
        self._is_delayed = False
        self.kick()

    def cut(self, with_state: bool) -> Group:
        """End the group and begin the next; return the ended one, with the state changes if they are due."""
        group, self.group = self.group, Group()
        began = self._clock()
        for gathering in group.gathered.values():
            gathering.cut()
        self._blocked(began)
        if with_state:
            group.state = self.state_commit = self._take_state(group)
        return group

    def _take_state(self, group: Group) -> StateCommit:
        unsafe: dict[str | None, set[int]] = {}
        for pending in (*self.unsettled, group):
            for stream, batch, packet_ids in pending.unsafe:
                if batch.offset >= stream.routed:
                    unsafe.setdefault(batch.origin, set()).update(packet_ids)
        noted = self._state.noted
        commit = StateCommit(self._state.take(unsafe), noted, self._state_waiters)
        self.state_is_due, self._state_waiters = False, []
        return commit

    # Settling

    def _written(self, group: Group) -> None:
        """Settle a group that was written, or could not be."""
        self.is_writing = False
        for stream, gathering in group.gathered.items():
            if stream in group.faults:
                self._broker.figures.log_lost += gathering.unpromised
            else:
                self._is_committed(stream, gathering.end)
            group.waiters.append(Waiter(None, None, partial(_set_routed, stream, gathering.end)))
        waiters, group.waiters = group.waiters, []  # no reference cycle: the bytes of the group must be freed
        waiters.append(Waiter(None, None, partial(self._is_settled, group)))
        self.settling.add(group, waiters)
        self.judge({stream: group.faults.get(stream) for stream in group.gathered})
        self.settling.work()

    def _is_settled(self, group: Group) -> None:
        self.unsettled.remove(group)
        for gathering in group.gathered.values():
            gathering.release()
        self.pending_bytes -= group.size
        self._make_room()
        self.kick()

    def _committed(self, commit: StateCommit) -> None:
        """Call the waiters of state changes that were committed, or keep the changes for the next attempt.

        Waiters of earlier messages are settled already, or are ahead in the order.
        """
        if commit.fault is None:
            self.settling.add_calls([*commit.waiters, self._state_is_settled])
        else:
            self._state.keep_uncommitted(commit.changes)
            self._state_waiters[:0] = commit.waiters
            self.state_is_due = False
            self._state_is_settled()
        self.judge({STATE: commit.fault})
        self.settling.work()

    def _state_is_settled(self) -> None:
        self.state_commit = None
        self._make_room()
        self.kick()

    def judge(self, outcomes: dict[Subject, Fault | None]) -> None:
        """Record what can and cannot be written; tell the broker when that changes."""
        news = [subject for subject, fault in outcomes.items() if self.faults.note(subject, fault)]
        if news:
            self._broker.alert()


def _set_routed(stream: Stream, offset: int) -> None:
    stream.routed = offset

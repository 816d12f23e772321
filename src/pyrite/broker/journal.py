"""The interface between the broker and the journal that makes its messages and state durable.

The broker appends messages and notes state changes as they happen. The journal collects both in a *group*,
makes the group durable, and then *settles* it: the messages of the group are routed and acknowledged, in
order. Whether a group is only in memory, synced to a disk, or replicated to other nodes, the broker cannot
tell.

No call blocks: slow calls answer through a callback, in the broker's thread.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyrite.process.fair import NO_ONE, Asker
from pyrite.topics.filters import matches

if TYPE_CHECKING:
    from pyrite.broker.accounts import Account
    from pyrite.broker.consumers import Consumer
    from pyrite.broker.fetching import Deliver, IsFull
    from pyrite.broker.message import Batch
    from pyrite.broker.session import Session
    from pyrite.broker.shared_group import SharedGroup
    from pyrite.broker.subscriptions import Subscription


class Fault(NamedTuple):
    """Why something could not be made durable."""

    full: bool
    """Whether space is exhausted."""
    text: str
    quota: bool = False
    """Whether it is the space of a user's quota."""


Done = Callable[[bool, Fault | None], object]
"""Called when a batch is durable and routed: whether it matched a subscription, or why it was refused."""


class Stream:
    """A named log that captures topic filters, as the broker sees it."""

    __slots__ = ("filters", "name", "next_offset", "number", "routed")

    def __init__(self, number: int, name: str, filters: Sequence[bytes], next_offset: int = 0) -> None:
        self.number = number
        """Identifies the stream in the state, also after a restart; never reused."""
        self.name = name
        self.filters = filters
        self.next_offset = next_offset
        """The offset that the next message gets."""
        self.routed = next_offset
        """Messages below this offset are in the log, and have been delivered."""


class Wanted:
    """Which messages a reader of a stream wants. Kept from one read to the next."""

    __slots__ = ("filters", "least_qos", "prepared")

    def __init__(self, filters: Iterable[bytes], least_qos: int = 0) -> None:
        self.filters = tuple(filters)
        self.least_qos = least_qos
        self.prepared: Any = None
        """What the journal prepares to find these messages. Several threads may use it."""

    def __call__(self, topic: bytes) -> bool:
        """Return whether messages of a topic are wanted."""
        return any(matches(one, topic) for one in self.filters)


class Piece(NamedTuple):
    """Part of a stream, filtered."""

    batches: list[Batch]
    """The wanted messages; each batch knows its stream, its offset and when it expires."""
    next_offset: int
    """The offset from which to continue."""


class StateChanges:
    """Records changes of everything that is not a message; the next group makes them durable.

    This class records nothing, which is right for a broker in memory.
    """

    def save_session(self, session: Session) -> None:
        """Record a session and its expiry."""

    def drop_session(self, session: Session) -> None:
        """Delete a session with everything that belongs to it."""

    def save_will(self, session: Session) -> None:
        """Record a session's will, or that it has none any more."""

    def release_session(self, session: Session) -> None:
        """Record that a session has ended, whether it outlives the process or not."""

    def save_owner(self, session: Session) -> None:
        """Record the account that a session counts for."""

    def drop_owner(self, session: Session) -> None:
        """Record that a session counts for no account any more."""

    def save_stored(self, account: Account) -> None:
        """Record that the bytes an account has stored in the log have changed."""

    def save_subscription(self, session: Session, key: bytes, subscription: Subscription) -> None:
        """Record a subscription."""

    def drop_subscription(self, session: Session, key: bytes) -> None:
        """Delete a subscription."""

    def save_incoming(self, session: Session) -> None:
        """Record that the ids of a session's unfinished QoS 2 messages have changed."""

    def save_deliveries(self, session: Session) -> None:
        """Record that messages were sent to a client, or acknowledged by it."""

    def save_group(self, group: SharedGroup) -> None:
        """Record that the cursor of a shared group has moved."""

    def drop_group(self, group: SharedGroup) -> None:
        """Delete a shared group that has no members left."""

    def save_retained(self, batch: Batch) -> None:
        """Record a retained message."""

    def drop_retained(self, topic: bytes) -> None:
        """Delete the retained message of a topic: an empty one came, or it has expired."""

    def delete_retained(self, topic: bytes) -> None:
        """Delete the retained message of a topic at a client's request."""
        self.drop_retained(topic)

    def save_consumer(self, consumer: Consumer) -> None:
        """Record a consumer, its cursor, and the changes of its pending messages."""

    def drop_consumer(self, name: str) -> None:
        """Delete a consumer."""

    def save_topic(self, topic: bytes) -> None:
        """Record a created topic."""

    def drop_topic(self, topic: bytes) -> None:
        """Delete a created topic."""


class Journal(ABC):
    """Makes messages and state changes durable, and reads messages again."""

    lasting: bool
    """Whether anything outlives the process."""
    deals_to_groups = True
    """Whether shared subscriptions work: each message goes to one member, wherever the members are."""
    streams: Sequence[Stream] = ()
    state: StateChanges

    @property
    def full(self) -> bool:
        """Whether so much waits to be written that no more should be read from clients."""
        return False

    @property
    def fault(self) -> Fault | None:
        """Why something cannot be written or read at present; None if everything can."""
        return None

    @property
    def damages_found(self) -> int:
        """How many damaged places were found."""
        return 0

    # Messages

    @abstractmethod
    def stream_for(self, topic: bytes) -> Stream | None:
        """Return the stream that captures a topic, if any does."""

    @abstractmethod
    def append(
        self, stream: Stream, batch: Batch, done: Done | None, packet_ids: Sequence[int] | None
    ) -> None:
        """Append a batch to a stream. It gets its offset at once.

        With QoS 1 and 2, or if there is a `done`, the batch is routed when it is durable.
        """

    @abstractmethod
    def unrouted(self, stream: Stream) -> list[Batch]:
        """Return the QoS 0 batches of a stream that were delivered, but cannot be read from the log yet."""

    @abstractmethod
    def read(
        self,
        stream: Stream,
        offset: int,
        stop: int,
        wanted: Wanted,
        answer: Callable[[Piece], object],
        asker: Asker = NO_ONE,
        at_once: bool = False,
    ) -> None:
        """Read some of a stream's messages from `offset` up to `stop`; `at_once`: in this thread.

        Reads of different askers take turns.
        """

    @abstractmethod
    def when_grown(self, call: Callable[[], object]) -> None:
        """Call once, soon after the next message can be read from any stream."""

    @abstractmethod
    def fetch(
        self,
        stream: Stream,
        offsets: Sequence[int],
        answer: Callable[[dict[int, Batch]], object],
        asker: Asker = NO_ONE,
    ) -> None:
        """Read single messages of a stream by offset; the answer omits messages that no longer exist."""

    @abstractmethod
    def offset_at(self, stream: Stream, when: float, answer: Callable[[int], object]) -> None:
        """Find the first message that arrived at `when` (seconds since 1970) or later."""

    @abstractmethod
    def earliest(self, stream: Stream) -> int:
        """Return the offset of the oldest stored message."""

    # Sessions

    def claim_session(
        self, client_id: str, clean_start: bool, then: Callable[[Fault | None], object]
    ) -> None:
        """Call `then` when the session of a client may be opened here, or with the reason why not."""
        then(None)

    # Consumers

    @property
    def pull_refusal(self) -> str:
        """Why nothing can be pulled at present; empty if it can."""
        return ""

    def claim_consumer(self, name: str, then: Callable[[Fault | None], object]) -> None:
        """Call `then` when a consumer may be changed here, or with the reason why not."""
        then(None)

    def handing_out(
        self, consumer: Consumer, deliver: Deliver, done: Callable[[int], object], is_full: IsFull
    ) -> tuple[Deliver, Callable[[int], object], IsFull]:
        """Return what a fetch calls with its messages and at its end."""
        return deliver, done, is_full

    # Groups

    @abstractmethod
    def after(self, call: Callable[[], object]) -> None:
        """Call when all messages and state changes so far are durable."""

    @abstractmethod
    def in_turn(self, call: Callable[[], object]) -> None:
        """Call when all earlier messages have been acknowledged or refused."""

    @abstractmethod
    def kick(self) -> None:
        """Commit the current group, unless the previous one is being committed."""

    def choked(self) -> None:  # noqa: B027
        """Record that a publisher was paused because the journal is full."""

    def wall(self) -> float:
        """Return the time in seconds since 1970."""
        return time.time()


class MemoryJournal(Journal):
    """The journal of a broker in memory: it has no streams, and every group is settled at once."""

    lasting = False

    def __init__(self) -> None:
        self.state: StateChanges = StateChanges()

    def stream_for(self, topic: bytes) -> Stream | None:
        """Return None: no stream captures anything."""
        return None

    def append(
        self, stream: Stream, batch: Batch, done: Done | None, packet_ids: Sequence[int] | None
    ) -> None:
        """Fail: there are no streams."""
        raise NotImplementedError

    def unrouted(self, stream: Stream) -> list[Batch]:
        """Return nothing."""
        return []

    def read(
        self,
        stream: Stream,
        offset: int,
        stop: int,
        wanted: Wanted,
        answer: Callable[[Piece], object],
        asker: Asker = NO_ONE,
        at_once: bool = False,
    ) -> None:
        """Fail: there are no streams."""
        raise NotImplementedError

    def when_grown(self, call: Callable[[], object]) -> None:
        """Fail: there are no streams."""
        raise NotImplementedError

    def fetch(
        self,
        stream: Stream,
        offsets: Sequence[int],
        answer: Callable[[dict[int, Batch]], object],
        asker: Asker = NO_ONE,
    ) -> None:
        """Fail: there are no streams."""
        raise NotImplementedError

    def offset_at(self, stream: Stream, when: float, answer: Callable[[int], object]) -> None:
        """Fail: there are no streams."""
        raise NotImplementedError

    def earliest(self, stream: Stream) -> int:
        """Return 0."""
        return 0

    def after(self, call: Callable[[], object]) -> None:
        """Call at once."""
        call()

    def in_turn(self, call: Callable[[], object]) -> None:
        """Call at once."""
        call()

    def kick(self) -> None:
        """Do nothing: there are no groups."""

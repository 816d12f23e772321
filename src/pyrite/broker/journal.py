"""What the broker needs of a log: where messages and state are kept, and how they are read again.

The journal in this module keeps nothing: with it everything is in memory, and as safe as it will ever be at
once. The one that writes to disk is in `pyrite.journal`. Nothing here blocks: what takes time is answered by
a call, in the broker's own thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyrite.process.fair import NO_ONE, Asker
from pyrite.topics.filters import matches

if TYPE_CHECKING:
    from pyrite.broker.accounts import Account
    from pyrite.broker.consumers import Consumer
    from pyrite.broker.message import Batch
    from pyrite.broker.session import Session
    from pyrite.broker.shared_group import SharedGroup
    from pyrite.broker.subscriptions import Subscription


class Fault(NamedTuple):
    """Why something could not be made safe."""

    full: bool
    """Whether it is for want of room."""
    text: str
    quota: bool = False
    """Whether it is a user's quota that has no room."""


Done = Callable[[bool, Fault | None], object]
"""Told when a batch is safe and on its way: whether anyone asked for it, or why it could not be kept."""


class Stream:
    """A named log that captures topics, as the broker sees it."""

    __slots__ = ("filters", "name", "next_offset", "number", "routed")

    def __init__(self, number: int, name: str, filters: Sequence[bytes], next_offset: int = 0) -> None:
        self.number = number
        """Its place among the streams; never another's, even after a restart."""
        self.name = name
        self.filters = filters
        self.next_offset = next_offset
        """The offset that the next message gets."""
        self.routed = next_offset
        """Messages below it are in the log, and have been given to who asked for them."""


class Wanted:
    """Which messages someone who reads a stream wants. Used by other threads, so it is never changed."""

    __slots__ = ("_exact", "_known", "_patterns", "least_qos")

    def __init__(self, filters: Iterable[bytes], least_qos: int = 0) -> None:
        filters = tuple(filters)
        self._patterns = tuple(one for one in filters if b"+" in one or b"#" in one)
        self._exact = frozenset(filters) - frozenset(self._patterns)
        self._known: dict[bytes, bool] = {}
        self.least_qos = least_qos

    def __call__(self, topic: bytes) -> bool:
        """Tell whether messages of a topic are wanted."""
        if not self._patterns:
            return topic in self._exact
        known = self._known.get(topic)
        if known is None:
            known = topic in self._exact or any(matches(one, topic) for one in self._patterns)
            if len(self._known) < 100_000:
                self._known[topic] = known
        return known


class Piece(NamedTuple):
    """A part of a stream, read through filters."""

    batches: list[Batch]
    """What was wanted; each knows its stream, its offset and when it expires."""
    next_offset: int
    """Where to go on reading."""


class Journal:
    """Keeps nothing."""

    lasting = False
    """Whether anything outlives the process."""
    full = False
    """Whether so much waits to be written that no more should be read from clients."""
    streams: Sequence[Stream] = ()
    fault: Fault | None = None
    """Why nothing can be written at present, if so."""
    damages_found = 0
    """How many damaged places were come across."""

    # Messages

    def stream_for(self, topic: bytes) -> Stream | None:
        """Return the stream that captures a topic, if any does."""
        return None

    def append(
        self, stream: Stream, batch: Batch, done: Done | None, packet_ids: Sequence[int] | None
    ) -> None:
        """Put a batch into a stream. It gets its offset at once.

        With QoS 1 and 2, or if `done` is to be told, it is given to who asked for it when it is safe.
        """
        raise NotImplementedError

    def choked(self) -> None:
        """Take note that who was to wait, as there is no room, does."""

    def unrouted(self, stream: Stream) -> list[Batch]:
        """Return the QoS 0 batches that were given to who asked for them, and are not yet in the log."""
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
        """Read some of a stream's messages from `offset` on and before `stop`; `at_once`: in this thread.

        Reads for one `asker` and for others take turns.
        """
        raise NotImplementedError

    def when_grown(self, call: Callable[[], object]) -> None:
        """Call once, soon after the next message can be read from a stream."""
        raise NotImplementedError

    def fetch(
        self,
        stream: Stream,
        offsets: Sequence[int],
        answer: Callable[[dict[int, Batch]], object],
        asker: Asker = NO_ONE,
    ) -> None:
        """Read single messages of a stream, by offset; what is no longer there is left out."""
        raise NotImplementedError

    def offset_at(self, stream: Stream, when: float, answer: Callable[[int], object]) -> None:
        """Find the first message that came at `when` (seconds since 1970) or later."""
        raise NotImplementedError

    def earliest(self, stream: Stream) -> int:
        """Return the offset of the oldest message that is kept."""
        return 0

    # State: noted now, safe when the next `after` is called

    def after(self, call: Callable[[], object]) -> None:
        """Call when everything that was noted, and every message that came, is safe."""
        call()

    def in_turn(self, call: Callable[[], object]) -> None:
        """Call when everyone who waited for an acknowledgement before has been told."""
        call()

    def kick(self) -> None:
        """Begin to write what has gathered, if nothing is being written."""

    def tidy(self) -> None:
        """Do what could wait until everything was sent."""

    def wall(self) -> float:
        """Return the time in seconds since 1970."""
        return time.time()

    def save_session(self, session: Session) -> None:
        """Note that there is a session, and when it expires."""

    def drop_session(self, session: Session) -> None:
        """Note that a session is over, with all that belongs to it."""

    def save_owner(self, session: Session) -> None:
        """Note which account a session counts for."""

    def drop_owner(self, session: Session) -> None:
        """Note that a session counts for none any more."""

    def save_stored(self, account: Account) -> None:
        """Note that what an account has stored in the log has changed."""

    def save_subscription(self, session: Session, key: bytes, subscription: Subscription) -> None:
        """Note a subscription."""

    def drop_subscription(self, session: Session, key: bytes) -> None:
        """Note that a subscription is over."""

    def save_incoming(self, session: Session) -> None:
        """Note that the ids of a session's unfinished QoS 2 messages have changed."""

    def save_deliveries(self, session: Session) -> None:
        """Note that what was sent to a client, or acknowledged by it, has changed."""

    def save_group(self, group: SharedGroup) -> None:
        """Note how far a shared subscription has come."""

    def drop_group(self, group: SharedGroup) -> None:
        """Note that a shared subscription has no members left."""

    def save_retained(self, batch: Batch) -> None:
        """Note a retained message."""

    def drop_retained(self, topic: bytes) -> None:
        """Note that nothing is retained on a topic."""

    def save_consumer(self, consumer: Consumer) -> None:
        """Note a consumer, how far it has come, and what has changed of what is pending."""

    def drop_consumer(self, name: str) -> None:
        """Note that a consumer is over."""

    def save_topic(self, topic: bytes) -> None:
        """Note that a topic was created."""

    def drop_topic(self, topic: bytes) -> None:
        """Note that a topic was deleted."""

"""Consumers: named cursors from which clients fetch messages, and acknowledge them.

A consumer has a topic filter and a durable position in each stream. Each message is delivered to one client
that fetches. It is delivered again if it is not acknowledged in time, or after a restart of the broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from pyrite.broker.fetching import Deliver, Fetch, IsFull, never_full
from pyrite.broker.journal import Stream, Wanted
from pyrite.broker.pending import Pending, Place
from pyrite.broker.quotas import MAX_CONSUMERS
from pyrite.broker.timers import TURN
from pyrite.errors import PyriteError
from pyrite.process.fair import NO_ONE, Asker
from pyrite.storage.positions import Earliest, Latest, Offset, Position
from pyrite.topics.filters import SHARE_PREFIX

if TYPE_CHECKING:
    from pyrite.broker.access import Credentials
    from pyrite.broker.accounts import Account
    from pyrite.broker.core import Broker
    from pyrite.broker.journal import Fault

ACKNOWLEDGE_WITHIN = 30.0
"""Seconds after which an unacknowledged message is delivered again."""
MAX_FETCH = 10_000
"""Messages in one fetch."""
REMOVALS_PER_CLOCK = 64
"""Messages acknowledged between two readings of the clock."""
MAX_WITHIN = 7 * 86_400.0
"""Maximum of `within`, in seconds."""
MAX_NAME = 256
"""Characters of a consumer's name."""


class Consumer:
    """One named consumer."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        topic_filter: bytes,
        positions: dict[Stream, int],
        within: float = ACKNOWLEDGE_WITHIN,
        owner: Account | None = None,
    ) -> None:
        self.broker = broker
        self.owner = owner
        """The account of the user who created the consumer, which counts for its quota."""
        self.name = name
        self.topic_filter = topic_filter
        self.positions = positions
        """The offset in each stream from which messages were not delivered yet."""
        self.within = within
        self.pending = Pending()
        """Messages that were delivered and are not acknowledged."""
        self.wanted = Wanted([topic_filter])
        self._fetches: deque[Fetch] = deque()
        """Requested fetches; the first is in progress."""

    @property
    def is_there(self) -> bool:
        """Whether the consumer still exists."""
        return self.broker.consumers.get(self.name) is self

    def fetch(
        self,
        most: int,
        deliver: Deliver,
        done: Callable[[int], object],
        asker: Asker = NO_ONE,
        is_full: IsFull = never_full,
    ) -> None:
        """Deliver up to `most` messages: first those due for redelivery, then new ones, in log order.

        `done` is called with their number at the end. The log is read for `asker`. The fetch ends early when
        `is_full`, but not before the first message.
        """
        deliver, done, is_full = self.broker.journal.handing_out(self, deliver, done, is_full)
        self._fetches.append(Fetch(self, min(most, MAX_FETCH), deliver, done, asker, is_full))
        if len(self._fetches) == 1:
            self._begin()

    def _begin(self) -> None:
        self.broker.journal.claim_consumer(self.name, self._claimed)

    def _claimed(self, fault: Fault | None) -> None:
        if fault is None:
            self._fetches[0].begin()
        else:
            self._fetches[0].end()

    def fetched(self) -> None:
        """Begin the next fetch, in a turn of its own: thousands of fetches may wait and find nothing.

        One fetch runs at a time, so that no message is delivered twice.
        """
        self._fetches.popleft()
        if self._fetches:
            self.broker.turns.soon(self._begin)

    def acknowledge(self, places: Sequence[Place], done: Callable[[int], object]) -> None:
        """Remove pending messages; `done` is called with the number removed, once that is durable."""
        acknowledgement = _Acknowledgement(self, places, done)

        def claimed(fault: Fault | None) -> None:
            if fault is None:
                acknowledgement.go_on()
            else:
                done(0)

        self.broker.journal.claim_consumer(self.name, claimed)

    def save(self) -> None:
        """Record the consumer's changes, unless it was deleted meanwhile."""
        if self.is_there:
            self.broker.journal.state.save_consumer(self)


class _Acknowledgement:
    """Removes acknowledged messages in turns: they may be many."""

    def __init__(self, consumer: Consumer, places: Sequence[Place], done: Callable[[int], object]) -> None:
        self._consumer = consumer
        self._places = iter(places)
        self._done = done
        self._known = 0

    def go_on(self) -> None:
        """Remove some of the messages."""
        consumer, broker = self._consumer, self._consumer.broker
        until = broker.clock() + TURN
        while some := list(islice(self._places, REMOVALS_PER_CLOCK)):
            self._known += sum(map(consumer.pending.discard, some))
            consumer.save()
            if broker.turns.is_over(self, until):
                return
        broker.journal.after(lambda: self._done(self._known))


class ConsumerError(PyriteError):
    """A request to a consumer failed; the text says why."""


class TooManyConsumers(ConsumerError):
    """The broker has the maximum number of consumers."""


class Unavailable(ConsumerError):
    """Nothing can be pulled at present."""


class NotAllowed(ConsumerError):
    """The caller may not pull from the consumer, or the consumer does not exist."""


class QuotaExceeded(ConsumerError):
    """The user has the maximum number of consumers."""


def create(
    broker: Broker,
    who: Credentials,
    name: str,
    topic_filter: bytes,
    start: Position,
    within: float,
    done: Callable[[], object],
) -> None:
    """Create a consumer for `who`, unless it exists; `done` is called once it is durable.

    Raise ConsumerError if a consumer of that name has another filter, without a log, or for invalid
    arguments.
    """
    streams = broker.journal.streams
    if not streams:
        raise ConsumerError("this broker keeps no log to fetch messages from")
    check_available(broker)
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise ConsumerError(f"a consumer's name has 1 to {MAX_NAME} printable characters")
    if topic_filter.startswith(SHARE_PREFIX):
        raise ConsumerError(
            "a consumer's filter cannot be shared: all clients of a consumer share its messages already"
        )
    if not 0 < within <= MAX_WITHIN:
        raise ConsumerError(f"within: expected more than 0 and at most {MAX_WITHIN:.0f} seconds")
    there = broker.consumers.get(name)
    if there is not None:
        if there.topic_filter != topic_filter:
            known = there.topic_filter.decode()
            may_know = broker.policy.refuse_pull(who, there.topic_filter) is None
            which = f"filter {known!r}" if may_know else "another filter"
            raise ConsumerError(f"consumer {name!r} already exists with {which}")
        broker.journal.after(done)
        return
    if len(broker.consumers) >= MAX_CONSUMERS:
        raise TooManyConsumers("too many consumers")
    owner = broker.quotas.account_of(who)
    refusal = broker.quotas.refusal(owner, "consumers")
    if refusal:
        raise QuotaExceeded(refusal)
    owner.consumers += 1  # now, as other consumers may be created before the start position is known
    positions: dict[Stream, int] = {}

    def found(stream: Stream, offset: int) -> None:
        positions[stream] = min(offset, stream.routed)
        if len(positions) < len(streams):
            return
        broker.journal.claim_consumer(name, claimed)

    def claimed(fault: Fault | None) -> None:
        if fault is None and name not in broker.consumers:  # another client may have created it meanwhile
            broker.consumers[name] = Consumer(broker, name, topic_filter, positions, within, owner)
            broker.consumers[name].save()
        else:
            owner.consumers -= 1
        if fault is None:
            broker.journal.after(done)

    for stream in streams:
        match start:
            case Earliest():
                found(stream, broker.journal.earliest(stream))
            case Latest():
                found(stream, stream.routed)
            case Offset(offset):
                found(stream, offset)
            case _:
                broker.journal.offset_at(stream, start.seconds(broker.journal.wall()), partial(found, stream))


def check_available(broker: Broker) -> None:
    """Raise Unavailable if nothing can be pulled at present."""
    if broker.journal.pull_refusal:
        raise Unavailable(broker.journal.pull_refusal)


def find(broker: Broker, who: Credentials, name: str) -> Consumer:
    """Return a consumer by name; raise ConsumerError if it does not exist, or NotAllowed.

    A caller that may not pull everything gets the same answer for a missing consumer as for a forbidden
    one, so the answer does not reveal which names exist.
    """
    consumer = broker.consumers.get(name)
    topic_filter = b"#" if consumer is None else consumer.topic_filter
    if broker.policy.refuse_pull(who, topic_filter) is not None:
        raise NotAllowed(f"not authorized: pull from consumer {name!r}, if it exists")
    if consumer is None:
        raise ConsumerError(f"there is no consumer {name!r}: create it first")
    check_available(broker)
    return consumer


def delete(consumer: Consumer, done: Callable[[], object]) -> None:
    """Delete a consumer; `done` is called once that is durable."""
    broker = consumer.broker

    def claimed(fault: Fault | None) -> None:
        if fault is None:
            forget(consumer)
            broker.journal.state.drop_consumer(consumer.name)
            broker.journal.after(done)

    broker.journal.claim_consumer(consumer.name, claimed)


def forget(consumer: Consumer) -> None:
    """Remove a consumer that was deleted."""
    broker = consumer.broker
    if broker.consumers.get(consumer.name) is consumer:
        del broker.consumers[consumer.name]
        if consumer.owner is not None:
            consumer.owner.consumers -= 1

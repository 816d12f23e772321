"""Pull: named consumers that fetch messages from the log when they like, and acknowledge them.

A consumer has a filter, and a place in each stream that lasts. A message is given out once, to whoever
fetches; it comes again only if it is not acknowledged in time, or if the broker went down before it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from pyrite.broker.fetching import Fetch, Give, IsFull, never_full
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

ACKNOWLEDGE_WITHIN = 30.0
"""Seconds after which a message that was fetched and not acknowledged is given out again."""
MAX_FETCH = 10_000
"""Messages in one fetch."""
TOGETHER = 64
"""Messages that are forgotten before it is looked how long that took."""
MAX_WITHIN = 7 * 86_400.0
"""Seconds that may be asked for to acknowledge a message in."""
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
        """The account that the consumer counts for: that of the user who created it."""
        self.name = name
        self.topic_filter = topic_filter
        self.positions = positions
        """From where on each stream has not been given out yet."""
        self.within = within
        self.pending = Pending()
        """What was given out and is not acknowledged."""
        self.wanted = Wanted([topic_filter])
        self._fetches: deque[Fetch] = deque()
        """Those that were asked for, of which the first is under way."""

    @property
    def is_there(self) -> bool:
        """Whether it was not deleted."""
        return self.broker.consumers.get(self.name) is self

    def fetch(
        self,
        most: int,
        give: Give,
        done: Callable[[int], object],
        asker: Asker = NO_ONE,
        is_full: IsFull = never_full,
    ) -> None:
        """Give out up to `most` messages: those overdue first, then new ones, in the log's order.

        `done` is told at the end how many there were. The log is read for `asker`. The fetch ends early when
        `is_full`, but not before the first message.
        """
        self._fetches.append(Fetch(self, min(most, MAX_FETCH), give, done, asker, is_full))
        if len(self._fetches) == 1:
            self._fetches[0].begin()

    def fetched(self) -> None:
        """Begin the next fetch in a turn of its own: thousands may wait, and find nothing.

        Fetches come one after the other, so that no message is given out twice.
        """
        self._fetches.popleft()
        if self._fetches:
            self.broker.turns.soon(self._fetches[0].begin)

    def acknowledge(self, places: Sequence[Place], done: Callable[[int], object]) -> None:
        """Note that messages were dealt with; `done` is told how many of them were known, when it is safe."""
        _Acknowledgement(self, places, done).go_on()

    def save(self) -> None:
        """Note what was given out and acknowledged, unless the consumer was deleted meanwhile."""
        if self.is_there:
            self.broker.journal.state.save_consumer(self)


class _Acknowledgement:
    """Forgets messages in turns: there may be many of them, far apart."""

    def __init__(self, consumer: Consumer, places: Sequence[Place], done: Callable[[int], object]) -> None:
        self._consumer = consumer
        self._places = iter(places)
        self._done = done
        self._known = 0

    def go_on(self) -> None:
        """Forget some more of them."""
        consumer, broker = self._consumer, self._consumer.broker
        until = broker.clock() + TURN
        while some := list(islice(self._places, TOGETHER)):
            self._known += sum(map(consumer.pending.discard, some))
            consumer.save()
            if broker.turns.is_over(self, until):
                return
        broker.journal.after(lambda: self._done(self._known))


class ConsumerError(PyriteError):
    """What was asked of a consumer cannot be; the text says why."""


class TooManyConsumers(ConsumerError):
    """There is no room for one more."""


class NotAllowed(ConsumerError):
    """The caller may not pull from the consumer, or the consumer does not exist."""


class QuotaExceeded(ConsumerError):
    """The user has as many consumers as its quota allows."""


def create(
    broker: Broker,
    who: Credentials,
    name: str,
    topic_filter: bytes,
    start: Position,
    within: float,
    done: Callable[[], object],
) -> None:
    """Make a consumer for `who`, or find it there; `done` is called when it is safe.

    Raise ConsumerError if there is one of that name with another filter, or no log to fetch from, or if it
    cannot be had like this.
    """
    streams = broker.journal.streams
    if not streams:
        raise ConsumerError("this broker keeps no log to fetch messages from")
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise ConsumerError(f"the name of a consumer is of 1 to {MAX_NAME} printable characters")
    if topic_filter.startswith(SHARE_PREFIX):
        raise ConsumerError(
            "a consumer's filter is not shared: those who pull under its name share its messages"
        )
    if not 0 < within <= MAX_WITHIN:
        raise ConsumerError(
            f"messages are acknowledged within at most {MAX_WITHIN:.0f} seconds, and more than 0"
        )
    there = broker.consumers.get(name)
    if there is not None:
        if there.topic_filter != topic_filter:
            known = there.topic_filter.decode()
            may_know = broker.policy.refuse_pull(who, there.topic_filter) is None
            which = f"the filter {known!r}" if may_know else "another filter"
            raise ConsumerError(f"consumer {name!r} is there, with {which}")
        broker.journal.after(done)
        return
    if len(broker.consumers) >= MAX_CONSUMERS:
        raise TooManyConsumers("there are too many consumers")
    owner = broker.quotas.account_of(who)
    refusal = broker.quotas.refusal(owner, "consumers")
    if refusal:
        raise QuotaExceeded(refusal)
    owner.consumers += 1  # at once: others may be created before this one's start is known
    positions: dict[Stream, int] = {}

    def found(stream: Stream, offset: int) -> None:
        positions[stream] = min(offset, stream.routed)
        if len(positions) < len(streams):
            return
        if name not in broker.consumers:  # another may have asked for it meanwhile
            broker.consumers[name] = Consumer(broker, name, topic_filter, positions, within, owner)
            broker.consumers[name].save()
        else:
            owner.consumers -= 1
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


def find(broker: Broker, who: Credentials, name: str) -> Consumer:
    """Return a consumer by name; raise ConsumerError if there is none, or NotAllowed.

    A caller that may not pull everything is told the same of a missing consumer as of one that it may not
    pull from, so that the answer does not tell which names exist.
    """
    consumer = broker.consumers.get(name)
    topic_filter = b"#" if consumer is None else consumer.topic_filter
    if broker.policy.refuse_pull(who, topic_filter) is not None:
        raise NotAllowed(f"not authorized: pull from consumer {name!r}, or there is no such consumer")
    if consumer is None:
        raise ConsumerError(f"there is no consumer {name!r}: create it first")
    return consumer


def delete(consumer: Consumer, done: Callable[[], object]) -> None:
    """Forget a consumer; `done` is called when that is safe."""
    broker = consumer.broker
    if broker.consumers.pop(consumer.name, None) is not None and consumer.owner is not None:
        consumer.owner.consumers -= 1
    broker.journal.state.drop_consumer(consumer.name)
    broker.journal.after(done)

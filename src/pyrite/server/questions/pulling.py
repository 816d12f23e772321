"""Pull over HTTP: consumers as MQTT has them (broker/consumers.py).

Told is where messages lie, not what they are: the HTTP process reads them from the log itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyrite.broker import consumers
from pyrite.broker.access import Credentials
from pyrite.broker.consumers import (
    ACKNOWLEDGE_WITHIN,
    Consumer,
    ConsumerError,
    NotAllowed,
    QuotaExceeded,
    TooManyConsumers,
)
from pyrite.broker.core import Broker
from pyrite.broker.message import Batch
from pyrite.broker.pending import Place
from pyrite.server.questions.problem import Later, Message, Problem, Reply, refused, safely
from pyrite.server.questions.topics import checked_filter
from pyrite.storage.positions import Earliest

LOOK = 0.1
"""Seconds between two looks whether something has come, for who waits."""
OVERDUE = 1.0
"""Seconds between two looks whether something is to be given out again."""


class Pulling:
    """Gives out messages."""

    def __init__(self, broker: Broker, later: Later) -> None:
        self._broker = broker
        self._later = later
        self._waiting: dict[int, Reply] = {}
        """Whom to answer when there is a message, by the number of the question."""

    def left(self, number: int) -> None:
        """Hear that no one waits any longer: a message would be given out to no one."""
        self._waiting.pop(number, None)

    def gone(self) -> None:
        """Hear that the process has ended: no one waits for anything."""
        self._waiting.clear()

    def pull(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Give out some messages, of a consumer that is made if it is not there; wait for one if need be."""
        name, most, wait = message["name"], message["max"], message["wait"]
        until = self._broker.clock() + wait
        found: list[list[Any]] = []

        def there() -> None:
            safely(fetch, reply)

        def fetch() -> None:
            if name not in self._broker.consumers:
                reply([])  # it was deleted meanwhile
                return
            if not self._broker.is_welcome(who):
                raise Problem(401, "log in again: users have changed")
            consumer = self._find(who, name)
            consumer.fetch(most, give, fetched, who.asker._replace(client=name))

        def give(place: Place, _: Batch) -> None:
            found.append([place.stream.name, place.offset])

        def fetched(count: int) -> None:
            consumer = self._broker.consumers.get(name)
            if count or consumer is None or self._broker.clock() >= until:
                reply(found)
            else:
                self._waiting[message["number"]] = reply
                self._watch(consumer, message["number"], until, there)

        if message["filter"] is None:
            self._find(who, name)
            there()
            return
        topic_filter = checked_filter(self._broker, message["filter"])
        self._check(who, topic_filter)
        refusal = self._broker.catalog.filter_refusal(topic_filter)
        if refusal:
            raise Problem(409, refusal)
        try:
            consumers.create(self._broker, who, name, topic_filter, Earliest(), ACKNOWLEDGE_WITHIN, there)
        except ConsumerError as wrong:
            status = {TooManyConsumers: 507, QuotaExceeded: 403}.get(type(wrong), 409)
            raise Problem(status, str(wrong)) from None

    def _watch(self, consumer: Consumer, number: int, until: float, then: Callable[[], None]) -> None:
        """Wait until there may be something to give out: numbers are compared, and nothing is read."""
        overdue = self._broker.clock() + OVERDUE
        who = self._waiting[number]

        def look() -> None:
            if self._waiting.get(number) is not who:
                return
            now = self._broker.clock()
            came = any(consumer.positions.get(one, 0) < one.routed for one in self._broker.journal.streams)
            if came or now >= until or (consumer.pending and now >= overdue):
                del self._waiting[number]
                then()
            else:
                self._later(LOOK, look)

        self._later(LOOK, look)

    def acknowledge(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Note that messages were dealt with; tell how many of them were known."""
        consumer = self._find(who, message["name"])
        wanted = message["filter"]
        if wanted is not None and wanted.encode("utf-8", "replace") != consumer.topic_filter:
            there = consumer.topic_filter.decode()
            raise Problem(409, f"consumer {consumer.name!r} is there, with the filter {there!r}")
        streams = {one.name: one for one in self._broker.journal.streams}
        stream = streams.get(message["stream"])
        if stream is None:
            raise Problem(404, f"there is no stream {message['stream']!r}")
        consumer.acknowledge([Place(stream, offset) for offset in message["offsets"]], reply)

    def _find(self, who: Credentials, name: str) -> Consumer:
        try:
            return consumers.find(self._broker, who, name)
        except NotAllowed as refusal:
            raise Problem(403, str(refusal)) from None
        except ConsumerError:
            raise Problem(404, f"there is no consumer {name!r}: pull with a filter makes it") from None

    def _check(self, who: Credentials, topic_filter: bytes) -> None:
        access = self._broker.access
        if access.checks_topics and not access.may_pull(who, topic_filter.decode()):
            raise refused("pull", topic_filter.decode())

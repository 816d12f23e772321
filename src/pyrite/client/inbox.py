"""Delivers received messages to subscriptions, and counts those that wait to be taken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from pyrite.client.errors import ClientError
from pyrite.client.message import Message
from pyrite.client.subscription import Subscription
from pyrite.topics.filters import matches, without_share

_log = logging.getLogger("pyrite.client")
_MAX_CACHED_TOPICS = 10_000


class Inbox:
    """The subscriptions of a client; `acknowledge` is called for messages that were taken."""

    def __init__(self, max_waiting: int, acknowledge: Callable[[Message], None]) -> None:
        self.waiting = 0
        """Messages that wait to be taken."""
        self._inherited = False
        """True if the session is older than this client, and may deliver before the client has subscribed."""
        self._max_waiting = max_waiting
        self._acknowledge = acknowledge
        self._subscriptions: dict[str, Subscription] = {}
        self._readers: dict[str, tuple[Subscription, ...]] = {}
        """The subscriptions of each topic: a cache of `matches`."""
        self._unclaimed: list[Message] = []
        """Messages of earlier subscriptions of the session, kept until the client subscribes again."""
        self._left: dict[str, bytes] = {}
        """Filters that were unsubscribed: messages still arriving for them are dropped."""
        self._taker: Subscription | None = None
        """The subscription that receives messages matching no other."""

    def __contains__(self, topic_filter: str) -> bool:
        return topic_filter in self._subscriptions

    def __iter__(self) -> Iterator[Subscription]:
        """Yield each subscription once, including one without filters."""
        rest = () if self._taker is None else (self._taker,)
        return iter(dict.fromkeys((*self._subscriptions.values(), *rest)))

    def open(self, subscription: Subscription, takes_unclaimed: bool = False) -> None:
        """Add a subscription and deliver the messages kept for it."""
        for topic_filter in subscription.filters:
            self._subscriptions[topic_filter] = subscription
            self._left.pop(topic_filter, None)
        if takes_unclaimed:
            self._taker = subscription
        self._readers.clear()
        unclaimed, self._unclaimed = self._unclaimed, []
        for message in unclaimed:
            self.deliver(message)

    def leave(self, topic_filter: str) -> None:
        """Remove a filter. With the last one, end the subscription and acknowledge and drop its messages."""
        subscription = self.forget(topic_filter)
        if subscription is not None and not subscription.filters:
            self.remove(subscription)
            subscription.end()
            self.taken(subscription.drop())
        self._left[topic_filter] = without_share(topic_filter.encode())
        unclaimed, self._unclaimed = self._unclaimed, []
        for message in unclaimed:
            self.deliver(message)

    def forget(self, topic_filter: str) -> Subscription | None:
        """Remove a filter and return the subscription that had it."""
        subscription = self._subscriptions.pop(topic_filter, None)
        if subscription is not None:
            subscription.forget(topic_filter)
        self._readers.clear()
        return subscription

    def remove(self, subscription: Subscription) -> None:
        for topic_filter in subscription.filters:
            if self._subscriptions.get(topic_filter) is subscription:
                del self._subscriptions[topic_filter]
        if self._taker is subscription:
            self._taker = None
        self._readers.clear()

    def end(self, error: ClientError | None) -> None:
        """End all iterators, with an error if there is one."""
        for subscription in self:
            subscription.end(error)
        self._subscriptions.clear()
        self._taker = None
        self._readers.clear()

    def deliver(self, message: Message) -> None:
        """Deliver a message to the subscriptions that match its topic."""
        readers = self._readers.get(message.topic)
        if readers is None:
            readers = self._find_readers(message.topic)
        if len(readers) > 1 and "subscription_identifier" in message.properties:
            # Overlapping filters: the broker names the subscriptions it means.
            meant = message.properties["subscription_identifier"]
            chosen = tuple(one for one in readers if one.properties.get("subscription_identifier") in meant)
            readers = chosen or readers
        if not readers:
            self._set_aside(message)
            return
        message.copies = len(readers)
        self.waiting += len(readers)
        for subscription in readers:
            subscription.put(message)

    def _find_readers(self, topic: str) -> tuple[Subscription, ...]:
        name = topic.encode()
        readers = tuple(one for one in self if any(matches(each, name) for each in one.patterns))
        if not readers and self._taker is not None and not self._is_left(topic):
            readers = (self._taker,)
        if len(self._readers) >= _MAX_CACHED_TOPICS:
            self._readers.clear()
        self._readers[topic] = readers
        return readers

    def _set_aside(self, message: Message) -> None:
        """Keep a message of an earlier subscription; acknowledge and drop an unwanted one."""
        if self._is_left(message.topic) or not self._inherited:
            if message.qos:
                self._acknowledge(message)
        elif message.qos or len(self._unclaimed) < self._max_waiting:
            self._unclaimed.append(message)
            if len(self._unclaimed) == self._max_waiting:
                _log.info("messages on topics such as %s wait for a subscription", message.topic)

    def _is_left(self, topic: str) -> bool:
        name = topic.encode()
        return any(matches(each, name) for each in self._left.values())

    def taken(self, messages: Sequence[Message]) -> None:
        """Acknowledge messages taken from a subscription's queue."""
        self.waiting -= len(messages)
        for message in messages:
            if message.qos:
                message.copies -= 1
                if not message.copies:
                    self._acknowledge(message)

    def resumed(self, inherited: bool) -> None:
        """Drop unacknowledged messages: a resumed session delivers them again."""
        self._inherited = self._inherited or inherited
        self._unclaimed = [message for message in self._unclaimed if not message.qos]
        for subscription in self:
            self.waiting -= subscription.forget_unacknowledged()

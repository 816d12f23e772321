"""Subscriptions: the messages of one or more filters as an asynchronous iterator."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from types import TracebackType
from typing import Protocol

from pyrite.client.errors import ClientError
from pyrite.client.message import Message, Properties
from pyrite.protocols.mqtt.packets import Wish
from pyrite.topics.filters import without_share


class Owner(Protocol):
    """What subscriptions need of the client."""

    def taken(self, messages: Sequence[Message]) -> None:
        """Acknowledge messages taken from a subscription's queue."""

    async def unsubscribe(self, subscription: Subscription) -> object:
        """End a subscription."""


class Subscription:
    """The messages of one subscription, in order of arrival: `async for message in messages`.

    A QoS 1 or 2 message is acknowledged when it is taken. The iterator ends when the client is closed, and
    raises ConnectionLost when the connection is lost for good.
    """

    def __init__(self, owner: Owner, wishes: Sequence[Wish], properties: Properties, start: str) -> None:
        self.filters = tuple(wish.topic_filter.decode() for wish in wishes)
        """The topic filters."""
        self.granted: dict[str, int] = {}
        """The filters that the broker granted, with their QoS."""
        self.refused: dict[str, int] = {}
        """The filters that the broker refused, with their reason codes."""
        self.said = ""
        """The broker's reason string."""
        self.wishes = list(wishes)
        self.properties = properties
        self.patterns = [without_share(wish.topic_filter) for wish in wishes]
        """The filters that topics are matched with: those of shared subscriptions without their group."""
        self._start = start
        self._heard = False
        self._owner = owner
        self._queue: deque[Message] = deque()
        self._news = asyncio.Event()
        self._ended = False
        self._error: ClientError | None = None

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Message:
        if not self._queue:
            await self._wait()
            if not self._queue:
                raise StopAsyncIteration
        message = self._queue.popleft()
        self._owner.taken((message,))
        return message

    async def get(self, timeout: float | None = None) -> Message:  # noqa: ASYNC109
        """Return the next message; raises TimeoutError if none arrives within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                return await self.__anext__()
        except StopAsyncIteration:
            raise ClientError("the subscription has ended") from None

    async def take(self, most: int) -> list[Message]:
        """Wait for a message and return up to `most`, unacknowledged; an empty list at the end of the
        subscription.

        Acknowledge them with `done`.
        """
        if not self._queue:
            await self._wait()
        queue = self._queue
        return [queue.popleft() for _ in range(min(most, len(queue)))]

    def done(self, messages: Sequence[Message]) -> None:
        """Acknowledge messages returned by `take`, which makes room for more."""
        self._owner.taken(messages)

    @property
    def qos(self) -> int:
        """The maximum QoS that the broker granted."""
        return max(self.granted.values(), default=0)

    @property
    def waiting(self) -> int:
        """The number of messages that wait to be taken."""
        return len(self._queue)

    async def close(self) -> None:
        """Unsubscribe and drop messages that were not taken."""
        if not self._ended:
            await self._owner.unsubscribe(self)

    async def _wait(self) -> None:
        while not self._queue:
            if self._error is not None:
                raise self._error
            if self._ended:
                return
            self._news.clear()
            await self._news.wait()

    # For the client

    def request(self) -> Properties:
        """Return the properties of SUBSCRIBE; asks for a replay until the first message has arrived."""
        if not self._start or self._heard:
            return self.properties
        asked = [*self.properties.get("user_property", ()), ("pyrite-from", self._start)]
        return self.properties | {"user_property": asked}

    def forget(self, topic_filter: str) -> None:
        """Remove a filter that was unsubscribed or not granted."""
        self.granted.pop(topic_filter, None)
        self.wishes = [wish for wish in self.wishes if wish.topic_filter.decode() != topic_filter]
        self.filters = tuple(wish.topic_filter.decode() for wish in self.wishes)
        self.patterns = [without_share(wish.topic_filter) for wish in self.wishes]

    def put(self, message: Message) -> None:
        """Add a message to the queue."""
        self._heard = True
        self._queue.append(message)
        self._news.set()

    def forget_unacknowledged(self) -> int:
        """Drop the messages that the broker will send again; return their number."""
        before = len(self._queue)
        self._queue = deque(message for message in self._queue if not message.qos)
        return before - len(self._queue)

    def end(self, error: ClientError | None = None) -> None:
        """End the iterator after the queued messages, with an error if there is one."""
        self._ended = True
        self._error = self._error or error
        self._news.set()

    def drop(self) -> list[Message]:
        """Clear and return the queue."""
        queue, self._queue = self._queue, deque()
        return list(queue)


class SubscribeCall:
    """A pending subscription: `await` it, or use it in `async with`, which unsubscribes at the end."""

    def __init__(self, begin: Callable[[], Awaitable[Subscription]]) -> None:
        self._begin = begin
        self._subscription: Subscription | None = None

    def __await__(self) -> Generator[object, None, Subscription]:
        return self._begin().__await__()

    async def __aenter__(self) -> Subscription:
        self._subscription = await self._begin()
        return self._subscription

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._subscription is not None
        await self._subscription.close()

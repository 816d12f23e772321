"""Requests that only Pyrite answers: listing, creating and deleting topics, and consumers.

A request is a message on a topic below `$pyrite/`, with a response topic and correlation data. The answer is
a series of messages, sent to the requesting client only. The last one is empty, and has the number of
messages or the error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from pyrite.client.errors import ClientError, PublishError, RequestError
from pyrite.client.message import Message, Properties, Pulled, Topic
from pyrite.client.protocol import Outgoing

ANSWERS = "$pyrite/answers"
"""The response topic. It can be the same for all clients, as Pyrite answers only the one that asked."""


class Requester(Protocol):
    """What requests need of the client."""

    async def request(self, topic: str, payload: bytes) -> list[Message]:
        """Send a request and return the messages of its answer."""

    async def send_request(self, topic: str, payload: bytes, properties: Properties) -> Outgoing:
        """Publish a request; `note` of the result is a future that the acknowledgement resolves."""

    def give_up_request(self, outgoing: Outgoing) -> None:
        """Forget a request, so that it is not sent again."""


class Requests:
    """The requests that wait for an answer."""

    def __init__(self, requester: Requester, timeout: float) -> None:
        self._requester = requester
        self._timeout = timeout
        self._last = 0
        self._pending: dict[bytes, tuple[list[Message], asyncio.Future[str]]] = {}

    @property
    def waiting(self) -> bool:
        """True while a request waits for its answer."""
        return bool(self._pending)

    async def ask(self, topic: str, payload: bytes) -> list[Message]:
        """Send a request and return the messages of its answer, without the last."""
        self._last += 1
        correlation = self._last.to_bytes(8, "big")
        messages: list[Message] = []
        error: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._pending[correlation] = messages, error
        sent: Outgoing | None = None
        try:
            async with asyncio.timeout(self._timeout):
                about = {"response_topic": ANSWERS, "correlation_data": correlation}
                sent = await self._requester.send_request(topic, payload, about)
                sent.note.add_done_callback(partial(_pass_on, error))
                text = await error
        except TimeoutError:
            raise RequestError(
                f"no answer to {topic} within {self._timeout:g} seconds: is the broker Pyrite?"
            ) from None
        except PublishError as refusal:
            raise RequestError(f"the broker refused {topic}: {refusal}: is the broker Pyrite?") from refusal
        finally:
            del self._pending[correlation]
            if sent is not None:
                self._requester.give_up_request(sent)
            if error.done() and not error.cancelled():
                error.exception()  # retrieved, even if the connection was lost before the request was sent
        if text:
            raise RequestError(text)
        return messages

    def answered(self, message: Message) -> bool:
        """Take a message that is part of an answer; return False for any other message."""
        if message.topic != ANSWERS:
            return False
        pending = self._pending.get(message.properties.get("correlation_data", b""))
        if pending is not None:
            messages, error = pending
            if message.user_property("pyrite-topic") is not None:
                messages.append(message)
            elif not error.done():
                error.set_result(message.user_property("pyrite-error") or "")
        return True

    def fail(self, error: ClientError) -> None:
        """Fail all requests: answers cannot arrive after the connection was lost."""
        for _, waiter in self._pending.values():
            if not waiter.done():
                waiter.set_exception(error)


def _pass_on(error: asyncio.Future[str], sent: asyncio.Future[None]) -> None:
    """Fail a request that the broker refused."""
    refusal = None if sent.cancelled() else sent.exception()
    if refusal is not None and not error.done():
        error.set_exception(refusal)


MAX_PLACES = 200
"""Places per request. A request holds at most 64 KiB; a place takes some 20 bytes, rarely 300."""


class Consumer:
    """A named cursor in the log; messages are fetched from it and acknowledged."""

    def __init__(self, requester: Requester, name: str, topic_filter: str | None) -> None:
        self.name = name
        self.filter = topic_filter
        """The filter given when it was opened; None for the consumer's own."""
        self._requester = requester

    async def pull(self, count: int = 100) -> list[Pulled]:
        """Fetch up to `count` messages, to be acknowledged by the caller; an empty list if there are none."""
        payload = json.dumps({"count": count}).encode()
        return [_pulled(message) for message in await self._ask("fetch", payload)]

    async def ack(self, messages: Iterable[Pulled | str]) -> None:
        """Acknowledge messages, or their places; once this returns, they are not fetched again."""
        places = [one if isinstance(one, str) else one.place for one in messages]
        for first in range(0, max(1, len(places)), MAX_PLACES):
            some = places[first : first + MAX_PLACES]
            await self._ask("ack", json.dumps(some).encode())

    async def delete(self) -> None:
        """Delete the consumer."""
        await delete_consumer(self._requester, self.name)

    async def _ask(self, action: str, payload: bytes) -> list[Message]:
        return await self._requester.request(f"$pyrite/consumers/{self.name}/{action}", payload)


async def consumer(
    requester: Requester, name: str, topic_filter: str | None, start: str | int, within: float
) -> Consumer:
    """Create or open a consumer."""
    wishes: dict[str, str | float] = {"from": str(start), "within": within}
    if topic_filter is not None:
        wishes["filter"] = topic_filter
    await requester.request(f"$pyrite/consumers/{name}/create", json.dumps(wishes).encode())
    return Consumer(requester, name, topic_filter)


async def delete_consumer(requester: Requester, name: str) -> None:
    """Delete a consumer."""
    await requester.request(f"$pyrite/consumers/{name}/delete", b"")


async def topics(requester: Requester, topic_filter: str) -> list[Topic]:
    """Return the topics that match a filter."""
    found = []
    for message in await requester.request("$pyrite/topics/list", topic_filter.encode()):
        kept = message.payload if message.user_property("pyrite-kept") else None
        found.append(Topic(message.user_property("pyrite-topic") or "", kept))
    return found


def _pulled(message: Message) -> Pulled:
    properties = dict(message.properties)
    for name in ("correlation_data", "subscription_identifier"):
        properties.pop(name, None)
    pairs = [
        pair
        for pair in properties.pop("user_property", ())
        if pair[0] not in ("pyrite-topic", "pyrite-place")
    ]
    if pairs:
        properties["user_property"] = pairs
    topic, place = message.user_property("pyrite-topic"), message.user_property("pyrite-place")
    return Pulled(topic or "", message.payload, place or "", properties)

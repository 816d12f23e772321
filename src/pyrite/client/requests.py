"""What only Pyrite knows: topics to list, create and delete, and consumers that pull from the log.

A request is a message on a topic below `$pyrite/`, with a response topic and correlation data; its answer is
messages to the client that asked, of which the last is empty and says how many there were, or what is wrong.
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
"""The response topic. Pyrite sends answers to the client that asked, so it need be no one's own."""


class Asker(Protocol):
    """The client, as its requests see it."""

    async def request(self, topic: str, payload: bytes) -> list[Message]:
        """Send a request and return the messages of its answer."""

    async def send_request(self, topic: str, payload: bytes, properties: Properties) -> Outgoing:
        """Publish a request; the note of the message is a future that ends when the broker has it."""

    def give_up_request(self, outgoing: Outgoing) -> None:
        """Forget a request that was sent."""


class Requests:
    """The requests that wait for an answer."""

    def __init__(self, asker: Asker, timeout: float) -> None:
        self._asker = asker
        self._timeout = timeout
        self._last = 0
        self._pending: dict[bytes, tuple[list[Message], asyncio.Future[str]]] = {}

    @property
    def waiting(self) -> bool:
        """Whether an answer is being waited for."""
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
                sent = await self._asker.send_request(topic, payload, about)
                sent.note.add_done_callback(partial(_pass_on, error))
                text = await error
        except TimeoutError:
            raise RequestError(
                f"no answer to {topic} within {self._timeout:g} seconds: is the broker Pyrite?"
            ) from None
        except PublishError as refusal:
            raise RequestError(f"the broker does not take {topic}: {refusal}: is it Pyrite?") from refusal
        finally:
            del self._pending[correlation]
            if sent is not None:
                self._asker.give_up_request(sent)
            if error.done() and not error.cancelled():
                error.exception()  # seen, even if the connection was lost before the request was sent
        if text:
            raise RequestError(text)
        return messages

    def answered(self, message: Message) -> bool:
        """Take a message if it is part of an answer; return whether it is."""
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
        """End all requests with an error: the connection that their answers were to come by is gone."""
        for _, waiter in self._pending.values():
            if not waiter.done():
                waiter.set_exception(error)


def _pass_on(error: asyncio.Future[str], sent: asyncio.Future[None]) -> None:
    """End a request that the broker refused."""
    refusal = None if sent.cancelled() else sent.exception()
    if refusal is not None and not error.done():
        error.set_exception(refusal)


ACKNOWLEDGED_TOGETHER = 200
"""Places in one request, which has at most 64 KiB; a place is of some 20 bytes, and seldom of 300."""


class Consumer:
    """A place in the log that lasts, under a name; messages are pulled from it, and acknowledged."""

    def __init__(self, asker: Asker, name: str, topic_filter: str | None) -> None:
        self.name = name
        self.filter = topic_filter
        """The filter it was asked for with; None if it was to be whatever it had."""
        self._asker = asker

    async def pull(self, count: int = 100) -> list[Pulled]:
        """Return up to `count` messages, the caller's to acknowledge; none if there are no more."""
        payload = json.dumps({"count": count}).encode()
        return [_pulled(message) for message in await self._ask("fetch", payload)]

    async def ack(self, messages: Iterable[Pulled | str]) -> None:
        """Acknowledge messages, or their places; when this returns, they will not be given out again."""
        places = [one if isinstance(one, str) else one.place for one in messages]
        for first in range(0, max(1, len(places)), ACKNOWLEDGED_TOGETHER):
            some = places[first : first + ACKNOWLEDGED_TOGETHER]
            await self._ask("ack", json.dumps(some).encode())

    async def delete(self) -> None:
        """Have the broker forget the consumer and its place."""
        await delete_consumer(self._asker, self.name)

    async def _ask(self, action: str, payload: bytes) -> list[Message]:
        return await self._asker.request(f"$pyrite/consumers/{self.name}/{action}", payload)


async def consumer(
    asker: Asker, name: str, topic_filter: str | None, start: str | int, within: float
) -> Consumer:
    """Make a consumer, or find it there."""
    wishes: dict[str, str | float] = {"from": str(start), "within": within}
    if topic_filter is not None:
        wishes["filter"] = topic_filter
    await asker.request(f"$pyrite/consumers/{name}/create", json.dumps(wishes).encode())
    return Consumer(asker, name, topic_filter)


async def delete_consumer(asker: Asker, name: str) -> None:
    """Have the broker forget a consumer and its place."""
    await asker.request(f"$pyrite/consumers/{name}/delete", b"")


async def topics(asker: Asker, topic_filter: str) -> list[Topic]:
    """Return the topics that match a filter."""
    found = []
    for message in await asker.request("$pyrite/topics/list", topic_filter.encode()):
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

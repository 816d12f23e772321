"""The blocking client: the asyncio client in a thread of its own.

with BlockingClient("mqtt://localhost:1883") as client:
    client.publish("sensors/kitchen", b"21.5", qos=1)
    for message in client.subscribe("sensors/#"):
        print(message.topic, message.payload)
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

import uvloop

from pyrite.client import requests
from pyrite.client.address import Address
from pyrite.client.aio import Client
from pyrite.client.errors import ClientError
from pyrite.client.message import Message, Properties, Pulled, Topic
from pyrite.client.subscription import Subscription

Result = TypeVar("Result")
_MAX_BATCH = 100
"""Messages per batch of a blocking iterator: switching threads takes longer than handling a message."""


class _ThreadCall(Generic[Result]):
    """A coroutine that runs in the client's thread while another thread waits for its result.

    run_coroutine_threadsafe uses a lock that Ctrl-C may leave locked, and the client's thread would then wait
    for it forever. A SimpleQueue has no such lock.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Result], loop: asyncio.AbstractEventLoop) -> None:
        self._coroutine = coroutine
        self._loop = loop
        self._done: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
        self._task: asyncio.Task[Result] | None = None
        loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Result]) -> None:
        self._task = None  # freed here, not in a thread that Ctrl-C may interrupt
        if task.cancelled():
            self._done.put(ClientError("the client was closed"))
        else:
            self._done.put(task.exception() or task.result())

    def result(self, timeout: float | None) -> Result:
        """Wait for the result; on a timeout or an interrupt, cancel the coroutine."""
        try:
            outcome = self._done.get(timeout=timeout)
        except BaseException as error:
            self._loop.call_soon_threadsafe(self._cancel)
            if isinstance(error, queue.Empty):
                raise TimeoutError(f"no answer from the broker within {timeout:g} seconds") from None
            raise
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()  # no effect on a task that is done


class BlockingClient:
    """The client for programs without an event loop; safe to use from several threads.

    `options` are those of Client. A call that takes longer than `timeout` seconds raises TimeoutError;
    waiting for messages is unlimited unless it is given a timeout.
    """

    def __init__(
        self, url: str | Address = "mqtt://localhost:1883", *, timeout: float = 10.0, **options: Any
    ) -> None:
        self._url = url
        self._options = options
        self._timeout = timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Client | None = None

    def __enter__(self) -> BlockingClient:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connect(self) -> None:
        """Connect; `with` does so. Raises ConnectError on failure."""
        if self._loop is not None:
            raise ClientError("the client is already connected")
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pyrite client", daemon=True)
        self._thread.start()
        try:
            self._client = self._run(self._begin(), self._timeout + 1.0)
        except BaseException:
            self._stop()
            raise

    async def _begin(self) -> Client:
        client = Client(self._url, timeout=self._timeout, **self._options)
        await client.connect()
        return client

    def close(self) -> None:
        """Disconnect and stop the thread; `with` does so."""
        client, self._client = self._client, None
        if self._loop is None:
            return
        try:
            if client is not None:
                self._run(client.close(), self._timeout)
        finally:
            self._stop()

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None
        assert self._thread is not None
        _ThreadCall(_end_tasks(), loop).result(self._timeout)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    def run(self, coroutine: Coroutine[Any, Any, Result], timeout: float | None = None) -> Result:
        """Run a coroutine in the client's thread and return its result. For this module only."""
        return self._run(coroutine, self._timeout if timeout is None else timeout)

    def request(self, coroutine: Coroutine[Any, Any, Result], timeout: float | None) -> Result:
        """Run a request, whose own timeout gives a better error. For this module only."""
        return self._run(coroutine, self._timeout + 1.0 if timeout is None else timeout)

    def _run(self, coroutine: Coroutine[Any, Any, Result], timeout: float | None) -> Result:
        if self._loop is None:
            coroutine.close()
            raise ClientError("the client is not connected: use it in a `with` block")
        return _ThreadCall(coroutine, self._loop).result(timeout)

    @property
    def _asyncio(self) -> Client:
        if self._client is None:
            raise ClientError("the client is not connected: use it in a `with` block")
        return self._client

    @property
    def connected(self) -> bool:
        """True while connected."""
        return self._client is not None and self._client.connected.is_set()

    def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish a message; with QoS 1 and 2, wait until the broker has acknowledged it."""
        self.run(self._asyncio.publish(topic, payload, qos, retain, properties), timeout)

    def publish_many(
        self, messages: Iterable[tuple[str, bytes | str]], qos: int = 0, timeout: float | None = None
    ) -> None:
        """Publish messages, given as pairs of topic and payload, with a single switch of threads."""
        self.run(self._asyncio.publish_many(list(messages), qos), timeout)

    def subscribe(
        self,
        topic_filter: str | Sequence[str],
        qos: int = 0,
        *,
        timeout: float | None = None,
        **options: Any,
    ) -> BlockingSubscription:
        """Subscribe and return an iterator of messages; `options` are those of Client.subscribe.

        Used in a `with` block, it unsubscribes at the end.
        """
        subscribing = self._asyncio.subscribe(topic_filter, qos, **options)
        return BlockingSubscription(self, self.run(_awaited(subscribing.__aenter__), timeout))

    def unsubscribe(self, topic_filter: str | Sequence[str], timeout: float | None = None) -> None:
        """Unsubscribe from filters of this client or of its session."""
        self.run(self._asyncio.unsubscribe(topic_filter), timeout)

    def topics(self, topic_filter: str = "#", timeout: float | None = None) -> list[Topic]:
        """Return the topics that match a filter, with their retained messages (Pyrite only)."""
        return self.request(self._asyncio.topics(topic_filter), timeout)

    def create_topic(self, topic: str, timeout: float | None = None) -> None:
        """Create a topic, as Client.create_topic does (Pyrite only)."""
        self.request(self._asyncio.create_topic(topic), timeout)

    def delete_topic(self, topic: str, timeout: float | None = None) -> None:
        """Delete a topic and its retained message (Pyrite only)."""
        self.request(self._asyncio.delete_topic(topic), timeout)

    def consumer(
        self,
        name: str,
        topic_filter: str | None = None,
        *,
        start: str | int = "earliest",
        within: float = 30.0,
        timeout: float | None = None,
    ) -> BlockingConsumer:
        """Create a consumer, or open an existing one, as Client.consumer does (Pyrite only)."""
        made = self.request(self._asyncio.consumer(name, topic_filter, start=start, within=within), timeout)
        return BlockingConsumer(self, made)

    def delete_consumer(self, name: str, timeout: float | None = None) -> None:
        """Delete a consumer (Pyrite only)."""
        self.request(self._asyncio.delete_consumer(name), timeout)


class BlockingSubscription:
    """The messages of one subscription: `for message in messages`.

    Messages are taken in batches of up to 100. A batch is acknowledged when the next one is requested, so a
    session that is kept receives again what a program had not processed when it ended.
    """

    def __init__(self, client: BlockingClient, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription
        self._batch: list[Message] = []
        self._given = 0

    @property
    def filters(self) -> tuple[str, ...]:
        """The topic filters."""
        return self._subscription.filters

    @property
    def qos(self) -> int:
        """The maximum QoS that the broker granted."""
        return self._subscription.qos

    def __enter__(self) -> BlockingSubscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> BlockingSubscription:
        return self

    def __next__(self) -> Message:
        message = self._next(None)
        if message is None:
            raise StopIteration
        return message

    def get(self, timeout: float | None = None) -> Message:
        """Return the next message; raises TimeoutError if none arrives within `timeout` seconds."""
        message = self._next(timeout)
        if message is None:
            raise ClientError("the subscription has ended")
        return message

    def _next(self, timeout: float | None) -> Message | None:
        if self._given == len(self._batch):
            given, self._batch, self._given = self._batch, [], 0
            self._batch = self._client._run(self._more(given, timeout), None)
            if not self._batch:
                return None
        self._given += 1
        return self._batch[self._given - 1]

    async def _more(self, given: list[Message], timeout: float | None) -> list[Message]:  # noqa: ASYNC109
        self._subscription.done(given)
        async with asyncio.timeout(timeout):
            return await self._subscription.take(_MAX_BATCH)

    def close(self, timeout: float | None = None) -> None:
        """Unsubscribe and drop messages that were not taken."""
        batch, self._batch, self._given = self._batch, [], 0
        self._client.run(self._end(batch), timeout)

    async def _end(self, batch: list[Message]) -> None:
        self._subscription.done(batch)
        await self._subscription.close()


class BlockingConsumer:
    """A named cursor in the log; messages are fetched from it and acknowledged."""

    def __init__(self, client: BlockingClient, consumer: requests.Consumer) -> None:
        self._client = client
        self._consumer = consumer
        self.name = consumer.name
        self.filter = consumer.filter

    def pull(self, count: int = 100, timeout: float | None = None) -> list[Pulled]:
        """Fetch up to `count` messages, to be acknowledged by the caller; an empty list if there are none."""
        return self._client.request(self._consumer.pull(count), timeout)

    def ack(self, messages: Iterable[Pulled | str], timeout: float | None = None) -> None:
        """Acknowledge messages, or their places; once this returns, they are not fetched again."""
        self._client.request(self._consumer.ack(list(messages)), timeout)

    def delete(self, timeout: float | None = None) -> None:
        """Delete the consumer."""
        self._client.request(self._consumer.delete(), timeout)


async def _awaited(call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    return await call()


async def _end_tasks() -> None:
    """Cancel the tasks that still run in this loop, such as an iterator another thread waits for."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

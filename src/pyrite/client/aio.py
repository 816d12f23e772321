"""The client for asyncio.

async with Client("mqtt://localhost:1883") as client:
    async with client.subscribe("sensors/#", qos=1) as messages:
        await client.publish("sensors/kitchen", b"21.5", qos=1)
        async for message in messages:
            print(message.topic, message.payload)
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

from pyrite.client import requests
from pyrite.client.errors import (
    ClientError,
    ConnectionLost,
    PublishError,
    RequestError,
    SubscribeError,
    reason_text,
)
from pyrite.client.inbox import Inbox
from pyrite.client.link import Callbacks, Link
from pyrite.client.message import Message, Properties, Topic, Will
from pyrite.client.protocol import Answered, Outgoing, Protocol, Settled
from pyrite.client.requests import Consumer, Requests
from pyrite.client.subscription import Subscribing, Subscription, check_filter
from pyrite.client.wire import parse_address
from pyrite.protocols.mqtt.packets import V5, V311, Connack, Connect, WillMessage, Wish
from pyrite.protocols.mqtt.reasons import Reason

WHILE_AWAY = 300
"""Seconds that the broker is asked to keep the session of a client that did not say how long."""


class Client:
    """A connection to an MQTT broker that comes back by itself, with its session.

    `url`: `mqtt://host:port`, `mqtts://`, `ws://host:port/path`, `wss://`, or `unix:///path`. A user name and
    password may stand in it.
    `client_id`: who this is to the broker; by default a random one. Name it if a session is to be continued.
    `clean_start`: forget what the broker has of this client's earlier session, at the first connect only.
    `session_expiry`: seconds that the broker keeps the session when this client is gone. By default, it
    outlives a lost connection by five minutes, and ends when the client is closed. (MQTT 3.1.1: without a
    number above 0, the session ends with the connection.)
    `keep_alive`: seconds without a packet after which the broker is asked for a sign of life; 0 for never.
    `username`, `password`: credentials; they take precedence over those in the URL.
    `tls`: settings for `mqtts://` and `wss://`; by default the system's authorities are trusted.
    `will`: what the broker publishes should this client vanish.
    `version`: 5, or 4 for MQTT 3.1.1.
    `reconnect`: connect again when the connection is lost, after 0.1 s at first and 30 s at most. If not, a
    lost connection ends everything that waits with ConnectionLost.
    `max_waiting`: messages that may wait to be taken from the iterators before the client stops reading from
    the connection (QoS 0), or acknowledging (QoS 1 and 2), which slows the broker down.
    `timeout`: seconds for connecting, and for answers to the requests that only Pyrite knows.
    `on_connect(session_present)`, `on_disconnect(error)`: called whenever a connection begins and is lost.
    """

    def __init__(
        self,
        url: str = "mqtt://localhost:1883",
        *,
        client_id: str | None = None,
        clean_start: bool = False,
        session_expiry: int | None = None,
        keep_alive: int = 60,
        username: str | None = None,
        password: str | bytes | None = None,
        tls: ssl.SSLContext | None = None,
        will: Will | None = None,
        version: int = V5,
        reconnect: bool = True,
        max_waiting: int = 1_000,
        timeout: float = 10.0,
        on_connect: Callable[[bool], object] | None = None,
        on_disconnect: Callable[[ClientError], object] | None = None,
    ) -> None:
        if version not in (V5, V311):
            raise ValueError("version is 5, or 4 for MQTT 3.1.1")
        if max_waiting < 1:
            raise ValueError("max_waiting is at least 1")
        if version == V311 and clean_start and session_expiry:
            raise ValueError("MQTT 3.1.1 cannot begin a new session and keep it: drop one of the two")
        self._address = parse_address(url)
        if tls is not None and self._address.scheme not in ("mqtts", "wss"):
            raise ValueError(f"{self._address.scheme}:// is not encrypted: use mqtts:// or wss:// with tls")
        self.client_id = client_id or f"pyrite-{secrets.token_hex(8)}"
        """Who this is to the broker."""
        self._clean_start = clean_start
        self._session_expiry = session_expiry
        self._keep_alive = keep_alive
        self._username = self._address.username if username is None else username
        given = self._address.password if password is None else password
        self._password = given.encode() if isinstance(given, str) else given
        self._will = will
        self._reconnect = reconnect
        self._max_waiting = max_waiting
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self._protocol = Protocol(version)
        callbacks = Callbacks(
            self._connect_packet, self._accepted, self._received, self._adjust_reading, self._lost, self._end
        )
        self._link = Link(self._address, tls, self._protocol, callbacks, reconnect, timeout, keep_alive)
        self.connected = self._link.connected
        """Set while there is a connection: `await client.connected.wait()`."""
        self._over: ClientError | None = ClientError("the client is not connected: use it in `async with`")
        """Why nothing can be done any more, or yet."""
        self._calls = 0
        """Calls that wait for the broker; while there are some, the client reads on."""
        self._arrivals: set[asyncio.Future[None]] = set()
        """Calls that wait for a connection."""
        self._answers: dict[int, asyncio.Future[Answered]] = {}
        self._leaving: set[int] = set()
        """Those of them that are for an UNSUBSCRIBE."""
        self._outgoing: set[Outgoing] = set()
        self._inbox = Inbox(max_waiting, self._protocol.acknowledge)
        self._last_identifier = 0
        self._was_connected = False
        self._requests = Requests(self, timeout)

    # The connection.

    async def __aenter__(self) -> Client:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect; `async with` does it. Raises ConnectError at once if it does not work."""
        if self._over is None:
            raise ClientError("the client is connected already")
        before, self._over = self._over, None
        try:
            await self._link.connect(self._clean_start)
        except BaseException:
            self._over = before
            raise

    async def close(self) -> None:
        """Say goodbye to the broker and end everything; `async with` does it.

        What was published is sent; what was not acknowledged raises ConnectionLost where it is waited for.
        Messages that have not been taken are not acknowledged, so a session that lasts brings them again.
        """
        self._end(ConnectionLost("the client was closed"), gone=False)
        ends = self._protocol.version == V5 and self._session_expiry is None
        await self._link.close({"session_expiry": 0} if ends else {})

    def _connect_packet(self, clean_start: bool) -> Connect:
        properties: Properties = {}
        clean = clean_start
        if self._protocol.version == V5:
            expiry = self._session_expiry
            if expiry is None:
                expiry = WHILE_AWAY if self._reconnect else 0
            properties = {"session_expiry": expiry, "receive_maximum": min(self._max_waiting, 65_535)}
        else:
            clean = not self._session_expiry
        will = None
        if self._will is not None:
            said = self._will
            will = WillMessage(said.topic.encode(), said.payload, said.qos, said.retain, said.properties)
        return Connect(
            self.client_id,
            self._protocol.version,
            clean,
            self._keep_alive,
            will,
            self._username,
            self._password,
            properties,
        )

    def _accepted(self, connack: Connack) -> None:
        self.client_id = connack.properties.get("assigned_client_id", self.client_id)
        if connack.session_present:
            self._inbox.resumed(inherited=not self._was_connected)
        else:
            self._resubscribe()
        self._was_connected = True
        for waiter in self._arrivals:
            if not waiter.done():
                waiter.set_result(None)
        self._call(self._on_connect, connack.session_present)

    def _lost(self, error: ClientError) -> None:
        for packet_id in self._leaving:
            answer = self._answers[packet_id]
            if not answer.done():
                answer.set_result(Answered(packet_id, [], ""))
        self._requests.fail(error)
        self._call(self._on_disconnect, error)

    def _end(self, error: ClientError, gone: bool = True) -> None:
        """End everything that waits. `gone` is false if the client was closed: then iterators just end."""
        if self._over is None:
            self._over = error
        for outgoing in self._outgoing:
            _fail(outgoing.note, error)
        for waiter in self._arrivals:
            _fail(waiter, error)
        for answer in self._answers.values():
            _fail(answer, error)
        self._requests.fail(error)
        self._inbox.end(error if gone else None)

    def _call(self, callback: Callable[[Any], object] | None, value: object) -> None:
        if callback is None:
            return
        try:
            callback(value)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a callback of pyrite.client.Client failed", "exception": error}
            )

    def _check(self) -> None:
        if self._over is not None:
            raise self._over

    # Publishing.

    async def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """Publish a message.

        With QoS 1 and 2, return when the broker has acknowledged it, however many connections that takes;
        with QoS 0, when it is on its way. Raises PublishError if the broker refuses, with its reason. A call
        that is cancelled leaves the message on its way if it was sent already.
        """
        data = payload.encode() if isinstance(payload, str) else payload
        self._check()
        if not qos:
            while not self._protocol.connected or self._link.wire is None or not self._link.wire.writable:
                await self._ready()
            self._protocol.publish(topic, data, 0, retain, properties)
            if self._protocol.has_much_output:
                self._link.flush()
                await asyncio.sleep(0)  # a loop that publishes is not to keep everyone else from their turn
            else:
                self._link.soon()
            return
        outgoing = self._send(topic, data, qos, retain, properties)
        self._calls += 1  # as _waiting_for_broker does, in less time
        if self._link.paused:
            self._adjust_reading()
        try:
            await outgoing.note
        except asyncio.CancelledError:
            self._protocol.withdraw(outgoing)
            raise
        finally:
            self._calls -= 1
            self._outgoing.discard(outgoing)
            if not self._calls:
                self._adjust_reading()

    def _send(
        self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties | None
    ) -> Outgoing:
        if qos not in (1, 2):
            raise ValueError(f"QoS is 0, 1 or 2, not {qos!r}")
        outgoing = self._protocol.publish(topic, payload, qos, retain, properties)
        outgoing.note = asyncio.get_running_loop().create_future()
        self._outgoing.add(outgoing)
        self._link.soon()
        return outgoing

    def publish_nowait(
        self,
        topic: str,
        payload: bytes | str = b"",
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """Publish a message with QoS 0 without waiting for anything.

        Raises ConnectionLost if there is no connection at the time. Who sends many calls `drained` now and
        then, so that they do not pile up in memory.
        """
        data = payload.encode() if isinstance(payload, str) else payload
        self._check()
        if not self._protocol.connected:
            raise ConnectionLost(f"there is no connection to {self._address} at the time")
        self._protocol.publish(topic, data, 0, retain, properties)
        if self._protocol.has_much_output:
            self._link.flush()
        else:
            self._link.soon()

    async def drained(self) -> None:
        """Return when what was published has been given to the system, or nearly so (1 MiB)."""
        while self._link.wire is not None and not self._link.wire.writable:
            await self._link.wire.drained()
        self._check()

    async def _ready(self) -> None:
        """Wait for a connection with room for more."""
        self._check()
        if self._link.wire is not None and self._protocol.connected:
            await self._link.wire.drained()
        else:
            await self._until_connected()

    async def _until_connected(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._arrivals.add(waiter)
        try:
            await waiter
        finally:
            self._arrivals.discard(waiter)

    @contextmanager
    def _waiting_for_broker(self) -> Iterator[None]:
        """Read on while a call waits for the broker, or one who publishes between messages waits for ever."""
        self._calls += 1
        self._adjust_reading()
        try:
            yield
        finally:
            self._calls -= 1
            self._adjust_reading()

    # Subscribing.

    def subscribe(
        self,
        topic_filter: str,
        qos: int = 0,
        *,
        start: str | int | None = None,
        lossless: bool = False,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        properties: Properties | None = None,
    ) -> Subscribing:
        """Subscribe: `async with client.subscribe("a/#") as messages:`, or `messages = await ...`.

        The former unsubscribes at the end, the latter leaves the subscription with the session.

        `start`: send the past first, from `earliest`, an offset, a time ago (`-1h`), a time, or `latest`.
        `lossless`: with QoS 0, send late what there was no room for, rather than never.
        (These two are Pyrite's, and MQTT 5 only; other brokers ignore them.)
        `no_local`, `retain_as_published`, `retain_handling`: the options of MQTT 5 (3.8.3.1).
        `properties`: more of MQTT 5, such as `user_property`.
        """
        if qos not in (0, 1, 2):
            raise ValueError(f"QoS is 0, 1 or 2, not {qos!r}")
        five = self._protocol.version == V5
        if not five and (start is not None or lossless or no_local or retain_as_published or retain_handling):
            raise ValueError("start, lossless and the options of MQTT 5 need version=5")
        check_filter(topic_filter)
        wish = Wish(topic_filter.encode(), qos, no_local, retain_as_published, retain_handling)
        wanted = dict(properties or {})
        asked = list(wanted.get("user_property", ()))
        if lossless:
            asked.append(("pyrite-lossless", "true"))
        first = [*asked, ("pyrite-from", str(start))] if start is not None else asked
        return Subscribing(lambda: self._subscribe(wish, wanted, asked, first))

    async def _subscribe(
        self, wish: Wish, wanted: Properties, later: list[tuple[str, str]], first: list[tuple[str, str]]
    ) -> Subscription:
        self._check()
        name = wish.topic_filter.decode()
        if name in self._inbox:
            raise ClientError(f"this client has subscribed to {name} already: a broker knows it only once")
        if self._protocol.version == V5 and self._protocol.capabilities.get(
            "subscription_identifier_available", 1
        ):
            # Tells messages of filters that overlap apart.
            self._last_identifier += 1
            wanted["subscription_identifier"] = self._last_identifier
        # After the loss of a session the past is not sent again, so `later` does not ask for it.
        subscription = Subscription(self, wish, wanted | ({"user_property": later} if later else {}))
        self._inbox.open(subscription)
        try:
            answer = await self._ask(
                self._protocol.subscribe(wish, wanted | ({"user_property": first} if first else {}))
            )
            self._grant(subscription, answer)
        except SubscribeError:
            self._inbox.remove(subscription)
            raise
        except asyncio.CancelledError:
            # The broker may have granted it, or be about to.
            self._inbox.leave(name)
            if self._over is None:
                self._protocol.unsubscribe(wish.topic_filter)
                self._link.soon()
            raise
        return subscription

    def _grant(self, subscription: Subscription, answer: Answered) -> None:
        reason = answer.reasons[0] if answer.reasons else Reason.UNSPECIFIED_ERROR
        if reason > 2:
            text = reason_text(reason, answer.text)
            raise SubscribeError(
                f"the broker refused the subscription to {subscription.filter}: {text}", reason
            )
        subscription.qos = reason
        subscription.granted = True

    async def _ask(self, packet_id: int) -> Answered:
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._answers[packet_id] = answer
        self._link.soon()
        try:
            with self._waiting_for_broker():
                return await answer
        except asyncio.CancelledError:
            self._protocol.abandon_request(packet_id)
            raise
        finally:
            self._answers.pop(packet_id, None)

    async def unsubscribe(self, subscription: Subscription | str) -> None:
        """End a subscription, given itself or its filter; what has come and was not taken is dropped.

        Without a connection, this does not wait for one: the broker is told when there is.
        """
        self._check()
        name = subscription.filter if isinstance(subscription, Subscription) else subscription
        self._inbox.leave(name)
        packet_id = self._protocol.unsubscribe(name.encode())
        if self._protocol.connected:
            self._leaving.add(packet_id)
            try:
                await self._ask(packet_id)
            finally:
                self._leaving.discard(packet_id)

    def _resubscribe(self) -> None:
        """Subscribe again, for the broker has no session."""
        for subscription in self._inbox:
            if subscription.granted:
                packet_id = self._protocol.subscribe(subscription.wish, subscription.properties)
                answer = self._answers[packet_id] = asyncio.get_running_loop().create_future()
                answer.add_done_callback(partial(self._resubscribed, subscription, packet_id))
        self._link.soon()

    def _resubscribed(
        self, subscription: Subscription, packet_id: int, answer: asyncio.Future[Answered]
    ) -> None:
        self._answers.pop(packet_id, None)
        if answer.cancelled() or answer.exception() is not None:
            return  # the client has ended, and with it the iterator
        try:
            self._grant(subscription, answer.result())
        except SubscribeError as error:
            self._inbox.remove(subscription)
            subscription.end(error)

    # Receiving.

    def _received(self, event: Message | Settled | Answered) -> None:
        if isinstance(event, Message):
            self._deliver(event)
        elif isinstance(event, Settled):
            self._settle(event)
        else:
            answer = self._answers.get(event.packet_id)
            if answer is not None and not answer.done():
                answer.set_result(event)

    def _settle(self, event: Settled) -> None:
        outgoing, reason = event.outgoing, event.reason
        self._outgoing.discard(outgoing)
        waiter = outgoing.note
        if waiter is None or waiter.done():
            return
        if reason < 0x80:
            waiter.set_result(None)
        else:
            topic, why = outgoing.topic[2:].decode(), reason_text(reason, event.text)
            waiter.set_exception(PublishError(f"the broker refused a message on {topic}: {why}", reason))

    def _deliver(self, message: Message) -> None:
        if self._requests.answered(message):
            if message.qos:
                self._protocol.acknowledge(message)
            return
        self._inbox.deliver(message)

    def taken(self, messages: Sequence[Message]) -> None:
        """Acknowledge messages that have been taken off a subscription's queue; the iterators do it."""
        self._inbox.taken(messages)
        if self._protocol.has_output:
            self._link.soon()
        if self._link.paused:
            self._adjust_reading()

    def _adjust_reading(self) -> None:
        """Stop reading while too many messages wait and no call does; go on when half of them are taken.

        QoS 1 and 2 never come to this: no more than `max_waiting` are sent without an acknowledgement.
        """
        if self._link.paused:
            if self._calls or self._inbox.waiting <= self._max_waiting // 2:
                self._link.resume_reading()
        elif self._inbox.waiting > self._max_waiting and not self._calls:
            self._link.pause_reading()

    # What only Pyrite knows.

    async def request(self, topic: str, payload: bytes) -> list[Message]:
        """Send one of Pyrite's requests (`$pyrite/...`) and return the messages of its answer."""
        self._check()
        if self._protocol.version != V5:
            raise RequestError("requests to Pyrite need MQTT 5: version=5")
        with self._waiting_for_broker():
            return await self._requests.ask(topic, payload)

    async def send_request(self, topic: str, payload: bytes, properties: Properties) -> Outgoing:
        """Send a request as soon as there is a connection."""
        while not self._protocol.connected:
            await self._ready()
        return self._send(topic, payload, 1, False, properties)

    def give_up_request(self, outgoing: Outgoing) -> None:
        """Forget a request, so that it is not sent again with a later connection."""
        self._outgoing.discard(outgoing)
        if not self._protocol.connected:
            self._protocol.abandon(outgoing)

    async def topics(self, topic_filter: str = "#") -> list[Topic]:
        """Return the topics that match a filter, with the values that are kept there."""
        return await requests.topics(self, topic_filter)

    async def create_topic(self, topic: str) -> None:
        """Have a topic listed, and allowed to be used where only listed ones are."""
        await self.request("$pyrite/topics/create", topic.encode())

    async def delete_topic(self, topic: str) -> None:
        """Have a topic forgotten, and the value that is kept there."""
        await self.request("$pyrite/topics/delete", topic.encode())

    async def consumer(
        self, name: str, topic_filter: str, *, start: str | int = "earliest", within: float = 30.0
    ) -> Consumer:
        """Make a consumer, a place in the log that lasts, or find it there.

        It is given the messages that match the filter, from `start` on (see `subscribe`). What is not
        acknowledged `within` so many seconds is given out again.
        """
        return await requests.consumer(self, name, topic_filter, start, within)


def _fail(waiter: asyncio.Future[Any] | None, error: ClientError) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_exception(error)

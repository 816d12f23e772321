"""The asyncio client.

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
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from pyrite.client import requests
from pyrite.client.address import Address, parse_address
from pyrite.client.connection import Callbacks, ClientConnection
from pyrite.client.errors import ClientError, ConnectionLost, RequestError
from pyrite.client.events import Outgoing, Settled
from pyrite.client.inbox import Inbox
from pyrite.client.message import Message, Properties, Topic, Will
from pyrite.client.options import ClientOptions
from pyrite.client.protocol import Answered, Protocol
from pyrite.client.publishing import ClientPublishing
from pyrite.client.requests import Consumer, Requests
from pyrite.client.subscribing import Subscriptions
from pyrite.client.subscription import SubscribeCall, Subscription
from pyrite.protocols.mqtt.packets import V5, Connack, Connect, Wish
from pyrite.topics.filters import InvalidTopic, check_filter, without_share


class Client(ClientPublishing):
    """A client of an MQTT broker that reconnects and keeps its session.

    `url`: `mqtt://host:port`, `mqtts://`, `ws://host:port/path`, `wss://` or `unix:///path`, optionally with
    user name and password; or an Address.
    `client_id`: the client identifier, by default a random one. Set it to resume a session.
    `clean_start`: discard an earlier session of this client identifier at the first connect.
    `session_expiry`: seconds for which the broker keeps the session after a disconnect. By default, the
    session survives a lost connection for five minutes and ends when the client is closed. (MQTT 3.1.1: the
    session ends with the connection unless this is above 0.)
    `keep_alive`: seconds without a packet after which a PINGREQ is sent; 0 to send none.
    `username`, `password`: credentials; they take precedence over those in the URL.
    `tls`: settings for `mqtts://` and `wss://`; by default the system's certificate authorities are trusted.
    `will`: published by the broker if this client disconnects unexpectedly.
    `properties`: further MQTT 5 properties of CONNECT: `user_property`, `receive_maximum`,
    `maximum_packet_size`, `topic_alias_maximum` (aliases used by the broker are resolved),
    `request_problem_information`.
    `version`: 5, or 4 for MQTT 3.1.1, or 3 for 3.1.
    `reconnect`: reconnect after a lost connection, first after 0.1 s, then with growing delays. Otherwise a
    lost connection fails every waiting call with ConnectionLost.
    `longest_pause`: the maximum delay between two attempts, in seconds.
    `max_waiting`: maximum number of received messages that no iterator has taken. Beyond it the client stops
    reading (QoS 0) or acknowledging (QoS 1 and 2), which makes the broker wait.
    `timeout`: seconds for connecting, and for answers to Pyrite's own requests.
    `bind_address`: the local address to connect from.
    `on_connect(session_present)`, `on_disconnect(error)`: called after each connect and each lost connection.
    """

    def __init__(
        self,
        url: str | Address = "mqtt://localhost:1883",
        *,
        client_id: str | None = None,
        clean_start: bool = False,
        session_expiry: int | None = None,
        keep_alive: int = 60,
        username: str | None = None,
        password: str | bytes | None = None,
        tls: ssl.SSLContext | None = None,
        will: Will | None = None,
        properties: Properties | None = None,
        version: int = V5,
        reconnect: bool = True,
        longest_pause: float = 30.0,
        max_waiting: int = 1_000,
        timeout: float = 10.0,
        bind_address: str = "",
        on_connect: Callable[[bool], object] | None = None,
        on_disconnect: Callable[[ClientError], object] | None = None,
    ) -> None:
        address = parse_address(url) if isinstance(url, str) else url
        given = address.password if password is None else password
        self._options = ClientOptions(
            address=address,
            clean_start=clean_start,
            session_expiry=session_expiry,
            keep_alive=keep_alive,
            username=address.username if username is None else username,
            password=given.encode() if isinstance(given, str) else given,
            tls=tls,
            will=will,
            properties=properties or {},
            version=version,
            reconnect=reconnect,
            longest_pause=longest_pause,
            max_waiting=max_waiting,
            timeout=timeout,
            bind_address=bind_address,
        )
        self.client_id = client_id if client_id is not None else f"pyrite-{secrets.token_hex(8)}"
        """The client identifier."""
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        protocol = Protocol(version)
        callbacks = Callbacks(
            self._connect_packet, self._accepted, self._received, self._adjust_reading, self._lost, self._end
        )
        super().__init__(
            self._options.address, protocol, ClientConnection(self._options, protocol, callbacks)
        )
        self.connected = self._connection.connected
        """Set while connected: `await client.connected.wait()`."""
        self._inbox = Inbox(max_waiting, self._protocol.acknowledge)
        self._subscriptions = Subscriptions(self._protocol, self._inbox, self._soon)
        self._was_connected = False
        self._requests = Requests(self, timeout)

    @property
    def capabilities(self) -> Properties:
        """The properties of CONNACK, such as `maximum_packet_size`; empty in MQTT 3.1.1."""
        return self._protocol.capabilities

    # Connection

    async def __aenter__(self) -> Client:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect; `async with` does so. Raises ConnectError without retrying."""
        if self._over is None:
            raise ClientError("the client is already connected")
        before, self._over = self._over, None
        try:
            await self._connection.connect(self._options.clean_start)
        except BaseException:
            self._over = before
            raise

    async def close(self, properties: Properties | None = None) -> None:
        """Disconnect and end every waiting call; `async with` does so.

        Messages published before are sent. Calls that wait for an acknowledgement raise ConnectionLost.
        Received messages that were not taken stay unacknowledged, so a session that is kept receives them
        again. `properties`: MQTT 5 properties of DISCONNECT, such as `user_property`.
        """
        self._end(ConnectionLost("the client was closed"), gone=False)
        await self._connection.close(self._options.disconnect_properties() | (properties or {}))

    def _connect_packet(self, clean_start: bool) -> Connect:
        return self._options.connect_packet(self.client_id, clean_start)

    def _accepted(self, connack: Connack) -> None:
        self.client_id = connack.properties.get("assigned_client_id", self.client_id)
        if connack.session_present:
            self._inbox.resumed(inherited=not self._was_connected)
        else:
            self._subscriptions.again()
        self._was_connected = True
        self._arrived()
        self._call(self._on_connect, connack.session_present)

    def _lost(self, error: ClientError) -> None:
        self._subscriptions.lost()
        self._requests.fail(error)
        self._call(self._on_disconnect, error)

    def _end(self, error: ClientError, gone: bool = True) -> None:
        """End every waiting call. After `close`, `gone` is false, and iterators end without an error."""
        if self._over is None:
            self._over = error
        self._end_publishing(error)
        self._subscriptions.end(error)
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

    # Subscribing

    def subscribe(
        self,
        topic_filter: str | Sequence[str],
        qos: int = 0,
        *,
        start: str | int | None = None,
        lossless: bool = False,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        unclaimed: bool = False,
        properties: Properties | None = None,
    ) -> SubscribeCall:
        """Subscribe: `async with client.subscribe("a/#") as messages:`, or `messages = await ...`.

        The first form unsubscribes at the end, the second leaves the subscription with the session. Several
        filters are sent in one SUBSCRIBE and share one iterator. Raises SubscribeError if the broker grants
        none of them; `messages.refused` lists those that were not granted.

        `start`: replay stored messages first, from `earliest`, an offset, a time ago (`-1h`), a time or
        `latest`.
        `lossless`: with QoS 0, delay messages when there is no room for them instead of dropping them.
        (Both need Pyrite and MQTT 5; other brokers ignore them.)
        `no_local`, `retain_as_published`, `retain_handling`: the subscription options of MQTT 5 (3.8.3.1).
        `unclaimed`: also receive messages that match no subscription of this client, which belong to an
        earlier subscription of the session. To receive only those, pass no filter: `[]`.
        `properties`: further MQTT 5 properties, such as `user_property`. A `subscription_identifier` replaces
        the one chosen by the client; None sends none.
        """
        if qos not in (0, 1, 2):
            raise ValueError(f"QoS must be 0, 1 or 2, not {qos!r}")
        five = self._protocol.version == V5
        beyond = start is not None or lossless or no_local or retain_as_published or retain_handling
        if not five and (beyond or properties):
            raise ValueError("start, lossless, properties and MQTT 5 subscription options need version=5")
        filters = [topic_filter] if isinstance(topic_filter, str) else topic_filter
        if not filters and not unclaimed:
            raise ValueError("a subscription needs at least one filter")
        for one in filters:
            try:
                check_filter(without_share(one.encode()))
            except (InvalidTopic, UnicodeEncodeError) as wrong:
                raise ValueError(f"invalid topic filter {one[:100]!r}: {wrong}") from None
        wishes = [
            Wish(one.encode(), qos, no_local, retain_as_published, retain_handling)
            for one in dict.fromkeys(filters)
        ]
        wanted = dict(properties or {})
        if lossless:
            wanted["user_property"] = [*wanted.get("user_property", ()), ("pyrite-lossless", "true")]
        subscription = Subscription(self, wishes, wanted, "" if start is None else str(start))
        return SubscribeCall(lambda: self._subscribe(subscription, unclaimed))

    async def _subscribe(self, subscription: Subscription, unclaimed: bool) -> Subscription:
        self._check()
        await self._subscriptions.subscribe(subscription, unclaimed)
        return subscription

    async def unsubscribe(
        self, subscription: Subscription | str | Sequence[str], properties: Properties | None = None
    ) -> dict[str, int]:
        """End a subscription, given itself or its filters; messages that were not taken are dropped.

        Without a connection this returns at once, and the broker is told after the next connect. Returns the
        filters that the broker refused to unsubscribe, with reason codes. `properties`: `user_property` of
        MQTT 5.
        """
        self._check()
        if isinstance(subscription, Subscription):
            filters: Sequence[str] = subscription.filters
            if not filters:
                self._inbox.remove(subscription)
                subscription.end()
                return {}
        else:
            filters = [subscription] if isinstance(subscription, str) else subscription
        return await self._subscriptions.unsubscribe(filters, properties)

    # Receiving

    def _received(self, event: Message | Settled | Answered) -> None:
        if isinstance(event, Message):
            self._deliver(event)
        elif isinstance(event, Settled):
            self._settle(event)
        else:
            self._subscriptions.answered(event)

    def _deliver(self, message: Message) -> None:
        if self._requests.answered(message):
            if message.qos:
                self._protocol.acknowledge(message)
            return
        self._inbox.deliver(message)

    def taken(self, messages: Sequence[Message]) -> None:
        """Acknowledge messages taken from a subscription's queue; iterators call this."""
        self._inbox.taken(messages)
        if self._protocol.has_output:
            self._connection.flush_soon()
        if self._connection.paused:
            self._adjust_reading()

    def _adjust_reading(self) -> None:
        """Pause reading while more than `max_waiting` messages wait; resume when half of them were taken.

        Never pauses while a call waits for an answer. QoS 1 and 2 do not get here: the broker sends no more
        than `max_waiting` unacknowledged messages.
        """
        waits = self._outgoing or self._tallies
        busy = waits or self._subscriptions.waiting or self._requests.waiting
        if self._connection.paused:
            if busy or self._inbox.waiting <= self._options.max_waiting // 2:
                self._connection.resume_reading()
        elif self._inbox.waiting > self._options.max_waiting and not busy:
            self._connection.pause_reading()

    # Requests that only Pyrite answers

    async def request(self, topic: str, payload: bytes) -> list[Message]:
        """Send a request to Pyrite (`$pyrite/...`) and return the messages of its answer."""
        self._check()
        if self._protocol.version != V5:
            raise RequestError("requests to Pyrite need MQTT 5 (version=5)")
        return await self._requests.ask(topic, payload)

    async def send_request(self, topic: str, payload: bytes, properties: Properties) -> Outgoing:
        """Send a request as soon as the client is connected."""
        while not self._protocol.connected:
            await self._ready()
        return self._send(topic, payload, 1, False, properties)

    def give_up_request(self, outgoing: Outgoing) -> None:
        """Forget a request, so that it is not sent again after a reconnect."""
        self._outgoing.discard(outgoing)
        if not self._protocol.connected:
            self._protocol.abandon(outgoing)

    async def topics(self, topic_filter: str = "#") -> list[Topic]:
        """Return the topics that match a filter, with their retained messages."""
        return await requests.topics(self, topic_filter)

    async def create_topic(self, topic: str) -> None:
        """Create a topic: it is listed, and may be used where the topic policy allows listed topics only."""
        await self.request("$pyrite/topics/create", topic.encode())

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic and its retained message."""
        await self.request("$pyrite/topics/delete", topic.encode())

    async def consumer(
        self,
        name: str,
        topic_filter: str | None = None,
        *,
        start: str | int = "earliest",
        within: float = 30.0,
    ) -> Consumer:
        """Create a consumer, or open an existing one.

        A new consumer fetches the messages that match the filter, from `start` on (see `subscribe`). Messages
        that are not acknowledged `within` this many seconds are fetched again. Without a filter, an existing
        consumer is opened with its own, and a new one gets `#`. Another filter than an existing consumer's is
        an error.
        """
        return await requests.consumer(self, name, topic_filter, start, within)

    async def delete_consumer(self, name: str) -> None:
        """Delete a consumer."""
        await requests.delete_consumer(self, name)

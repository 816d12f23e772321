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
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from pyrite.client import requests
from pyrite.client.errors import ClientError, ConnectionLost, RequestError
from pyrite.client.events import Outgoing, Settled
from pyrite.client.inbox import Inbox
from pyrite.client.link import Callbacks, Link
from pyrite.client.message import Message, Properties, Topic, Will
from pyrite.client.options import Options
from pyrite.client.protocol import Answered, Protocol
from pyrite.client.publishing import Publishing
from pyrite.client.requests import Consumer, Requests
from pyrite.client.subscribing import Subscriptions
from pyrite.client.subscription import Subscribing, Subscription
from pyrite.client.wire import Address, parse_address
from pyrite.filters import check_filter
from pyrite.protocols.mqtt.packets import V5, Connack, Connect, Wish


class Client(Publishing):
    """A connection to an MQTT broker that comes back by itself, with its session.

    `url`: `mqtt://host:port`, `mqtts://`, `ws://host:port/path`, `wss://`, or `unix:///path`. A user name and
    password may stand in it. An Address does as well.
    `client_id`: who this is to the broker; by default a random one. Name it if a session is to be continued.
    `clean_start`: forget what the broker has of this client's earlier session, at the first connect only.
    `session_expiry`: seconds that the broker keeps the session when this client is gone. By default, it
    outlives a lost connection by five minutes, and ends when the client is closed. (MQTT 3.1.1: without a
    number above 0, the session ends with the connection.)
    `keep_alive`: seconds without a packet after which the broker is asked for a sign of life; 0 for never.
    `username`, `password`: credentials; they take precedence over those in the URL.
    `tls`: settings for `mqtts://` and `wss://`; by default the system's authorities are trusted.
    `will`: what the broker publishes should this client vanish.
    `properties`: more of MQTT 5 for CONNECT: `user_property`, `receive_maximum`, `maximum_packet_size`,
    `topic_alias_maximum` (aliases in what the broker sends are resolved), `request_problem_information`.
    `version`: 5, or 4 for MQTT 3.1.1, or 3 for 3.1.
    `reconnect`: connect again when the connection is lost, after 0.1 s at first, then with longer and longer
    pauses. If not, a lost connection ends everything that waits with ConnectionLost.
    `longest_pause`: seconds between two attempts at most.
    `max_waiting`: messages that may wait to be taken from the iterators before the client stops reading from
    the connection (QoS 0), or acknowledging (QoS 1 and 2), which slows the broker down.
    `timeout`: seconds for connecting, and for answers to the requests that only Pyrite knows.
    `bind_address`: the address of this machine to connect from.
    `on_connect(session_present)`, `on_disconnect(error)`: called whenever a connection begins and is lost.
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
        self._options = Options(
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
        """Who this is to the broker."""
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        protocol = Protocol(version)
        callbacks = Callbacks(
            self._connect_packet, self._accepted, self._received, self._adjust_reading, self._lost, self._end
        )
        super().__init__(self._options.address, protocol, Link(self._options, protocol, callbacks))
        self.connected = self._link.connected
        """Set while there is a connection: `await client.connected.wait()`."""
        self._inbox = Inbox(max_waiting, self._protocol.acknowledge)
        self._subscriptions = Subscriptions(self._protocol, self._inbox, self._soon)
        self._was_connected = False
        self._requests = Requests(self, timeout)

    @property
    def capabilities(self) -> Properties:
        """What the broker said of itself in CONNACK, such as `maximum_packet_size`; empty in 3.1.1."""
        return self._protocol.capabilities

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
            await self._link.connect(self._options.clean_start)
        except BaseException:
            self._over = before
            raise

    async def close(self, properties: Properties | None = None) -> None:
        """Say goodbye to the broker and end everything; `async with` does it.

        What was published is sent; what was not acknowledged raises ConnectionLost where it is waited for.
        Messages that have not been taken are not acknowledged, so a session that lasts brings them again.
        `properties`: more of MQTT 5 for DISCONNECT, such as `user_property`.
        """
        self._end(ConnectionLost("the client was closed"), gone=False)
        await self._link.close(self._options.disconnect_properties() | (properties or {}))

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
        """End everything that waits. `gone` is false if the client was closed: then iterators just end."""
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

    # Subscribing.

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
    ) -> Subscribing:
        """Subscribe: `async with client.subscribe("a/#") as messages:`, or `messages = await ...`.

        The former unsubscribes at the end, the latter leaves the subscription with the session. Several
        filters are asked for in one packet and make one iterator; SubscribeError is raised if the broker
        grants none of them, and `messages.refused` tells which it did not.

        `start`: send the past first, from `earliest`, an offset, a time ago (`-1h`), a time, or `latest`.
        `lossless`: with QoS 0, send late what there was no room for, rather than never.
        (These two are Pyrite's, and MQTT 5 only; other brokers ignore them.)
        `no_local`, `retain_as_published`, `retain_handling`: the options of MQTT 5 (3.8.3.1).
        `unclaimed`: take also what comes for no subscription of this client, which is what the session has
        from an earlier one. For nothing but that, there may be no filter: `[]`.
        `properties`: more of MQTT 5, such as `user_property`. A `subscription_identifier` takes the place of
        the one that the client chooses; None is for none.
        """
        if qos not in (0, 1, 2):
            raise ValueError(f"QoS is 0, 1 or 2, not {qos!r}")
        five = self._protocol.version == V5
        beyond = start is not None or lossless or no_local or retain_as_published or retain_handling
        if not five and (beyond or properties):
            raise ValueError("start, lossless, properties and the options of MQTT 5 need version=5")
        filters = [topic_filter] if isinstance(topic_filter, str) else topic_filter
        if not filters and not unclaimed:
            raise ValueError("a subscription has at least one filter")
        for one in filters:
            check_filter(one)
        wishes = [
            Wish(one.encode(), qos, no_local, retain_as_published, retain_handling)
            for one in dict.fromkeys(filters)
        ]
        wanted = dict(properties or {})
        if lossless:
            wanted["user_property"] = [*wanted.get("user_property", ()), ("pyrite-lossless", "true")]
        subscription = Subscription(self, wishes, wanted, "" if start is None else str(start))
        return Subscribing(lambda: self._subscribe(subscription, unclaimed))

    async def _subscribe(self, subscription: Subscription, unclaimed: bool) -> Subscription:
        self._check()
        await self._subscriptions.subscribe(subscription, unclaimed)
        return subscription

    async def unsubscribe(
        self, subscription: Subscription | str | Sequence[str], properties: Properties | None = None
    ) -> dict[str, int]:
        """End a subscription, given itself or its filters; what has come and was not taken is dropped.

        Without a connection, this does not wait for one: the broker is told when there is. Returns the
        filters that the broker refused to let go of, with its reason codes.
        `properties`: `user_property` of MQTT 5.
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

    # Receiving.

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
        busy = self._outgoing or self._subscriptions.waiting or self._requests.waiting
        if self._link.paused:
            if busy or self._inbox.waiting <= self._options.max_waiting // 2:
                self._link.resume_reading()
        elif self._inbox.waiting > self._options.max_waiting and not busy:
            self._link.pause_reading()

    # What only Pyrite knows.

    async def request(self, topic: str, payload: bytes) -> list[Message]:
        """Send one of Pyrite's requests (`$pyrite/...`) and return the messages of its answer."""
        self._check()
        if self._protocol.version != V5:
            raise RequestError("requests to Pyrite need MQTT 5: version=5")
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
        self,
        name: str,
        topic_filter: str | None = None,
        *,
        start: str | int = "earliest",
        within: float = 30.0,
    ) -> Consumer:
        """Make a consumer, a place in the log that lasts, or find it there.

        It is given the messages that match the filter, from `start` on (see `subscribe`). What is not
        acknowledged `within` so many seconds is given out again. Without a filter it is the consumer that is
        there, or a new one of all messages; with another filter than it has, it is an error.
        """
        return await requests.consumer(self, name, topic_filter, start, within)

    async def delete_consumer(self, name: str) -> None:
        """Have the broker forget a consumer and its place."""
        await requests.delete_consumer(self, name)

"""paho-mqtt, Eclipse's Python client, with its network loop in a thread."""

from __future__ import annotations

import os
import socket
import ssl
from concurrent.futures import Future
from typing import Any, Literal
from uuid import uuid4

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.reasoncodes import ReasonCode

from .client import (
    SECONDS,
    SESSION_EXPIRY,
    Address,
    Arrival,
    Client,
    Message,
    Properties,
    Refused,
    Subscriber,
    Subscription,
)

TRANSPORTS: dict[str, Literal["tcp", "websockets", "unix"]] = {
    "tcp": "tcp",
    "tls": "tcp",
    "ws": "websockets",
    "wss": "websockets",
    "unix": "unix",
}
"""What paho-mqtt calls our transports."""

_NAMES = {
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "correlation_data": "CorrelationData",
    "expiry": "MessageExpiryInterval",
}


def _empty(packet_type: int) -> PahoProperties:
    return PahoProperties(packet_type)  # type: ignore[no-untyped-call]


def tls_context(address: Address) -> ssl.SSLContext | None:
    """Return the TLS context for an address, or None if it has no TLS."""
    if address.transport not in ("tls", "wss"):
        return None
    context = ssl.create_default_context(cafile=address.ca)
    if address.certificate is not None:
        context.load_cert_chain(address.certificate)
    return context


def publish_properties(properties: Properties | None) -> PahoProperties | None:
    """Return the properties of PUBLISH as paho-mqtt expects them."""
    if properties is None:
        return None
    paho = _empty(PacketTypes.PUBLISH)
    for ours, theirs in _NAMES.items():
        value = getattr(properties, ours)
        if value is not None:
            setattr(paho, theirs, value)
    if properties.user:
        paho.UserProperty = list(properties.user)
    return paho


def connect_properties(version: int, session: str | None) -> PahoProperties | None:
    """Return the properties of CONNECT for a persistent or a clean session."""
    if version < 5 or session is None:
        return None
    paho = _empty(PacketTypes.CONNECT)
    paho.SessionExpiryInterval = SESSION_EXPIRY
    return paho


def subscribe_properties(identifier: int | None) -> PahoProperties | None:
    """Return the properties of SUBSCRIBE."""
    if identifier is None:
        return None
    paho = _empty(PacketTypes.SUBSCRIBE)
    paho.SubscriptionIdentifier = identifier
    return paho


def received_properties(paho: PahoProperties | None) -> Properties:
    """Return the properties of a received message."""
    return Properties(
        user=tuple(getattr(paho, "UserProperty", ())),
        subscription_identifiers=tuple(getattr(paho, "SubscriptionIdentifier", ())),
        **{ours: getattr(paho, theirs, None) for ours, theirs in _NAMES.items()},
    )


def cut(connection: Any) -> None:
    """Close the TCP connection below the TLS or WebSocket layer of paho-mqtt."""
    with socket.socket(fileno=os.dup(connection.fileno())) as bare:
        bare.shutdown(socket.SHUT_RDWR)


class PahoSubscriber(Subscriber):
    """One paho-mqtt client; publishers use it too, without the subscription."""

    def __init__(self, address: Address, version: int, arrival: Arrival | None = None) -> None:
        super().__init__(arrival)
        self._address = address
        self._version = version
        self._connected: Future[None] = Future()
        self._subscribed: Future[None] = Future()
        self._disconnected: Future[None] = Future()

    def connect(self, subscription: Subscription | None = None) -> None:
        session = subscription.session if subscription else None
        self._client = client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=subscription.client_id if subscription else "interop-" + uuid4().hex,
            protocol=MQTTProtocolVersion(self._version),
            transport=TRANSPORTS[self._address.transport],
            clean_session=None if self._version == 5 else session is None,
            reconnect_on_failure=False,
        )
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.ws_set_options(path=self._address.path)
        context = tls_context(self._address)
        if context is not None:
            client.tls_set_context(context)
        if subscription and subscription.will:
            client.will_set(subscription.will.topic, subscription.will.payload, subscription.will.qos)
        unix = self._address.transport == "unix"
        client.connect(
            self._address.path if unix else self._address.host,
            self._address.port or 1883,
            clean_start=session is None if self._version == 5 else mqtt.MQTT_CLEAN_START_FIRST_ONLY,
            properties=connect_properties(self._version, session),
        )
        client.loop_start()
        try:
            self._connected.result(SECONDS)
        except Refused:
            client.loop_stop()
            raise

    def subscribe(self, subscription: Subscription) -> None:
        self._client.subscribe(
            subscription.topic_filter,
            subscription.qos,
            properties=subscribe_properties(subscription.identifier),
        )
        self._subscribed.result(SECONDS)

    def publish(
        self, topic: str, payloads: tuple[bytes, ...], qos: int, retain: bool, properties: Properties | None
    ) -> None:
        sent = [
            self._client.publish(topic, payload, qos, retain, publish_properties(properties))
            for payload in payloads
        ]
        for one in sent:
            one.wait_for_publish(SECONDS)
            assert one.is_published(), f"not acknowledged within {SECONDS} s"

    def close(self) -> None:
        if not self._disconnected.done():
            self._client.disconnect()
            self._disconnected.result(SECONDS)
        self._client.loop_stop()

    def break_connection(self) -> None:
        cut(self._client.socket())
        self._disconnected.result(SECONDS)

    def _on_connect(
        self,
        client: mqtt.Client,
        userdata: Any,
        flags: mqtt.ConnectFlags,
        reason: ReasonCode,
        properties: PahoProperties | None,
    ) -> None:
        if reason.is_failure:
            self._connected.set_exception(Refused(str(reason)))
        else:
            self._connected.set_result(None)

    def _on_disconnect(
        self,
        client: mqtt.Client,
        userdata: Any,
        flags: mqtt.DisconnectFlags,
        reason: ReasonCode,
        properties: PahoProperties | None,
    ) -> None:
        if not self._connected.done():
            self._connected.set_exception(Refused(str(reason)))
        if not self._disconnected.done():
            self._disconnected.set_result(None)

    def _on_subscribe(
        self,
        client: mqtt.Client,
        userdata: Any,
        mid: int,
        reasons: list[ReasonCode],
        properties: PahoProperties | None,
    ) -> None:
        if reasons[0].is_failure:
            self._subscribed.set_exception(Refused(str(reasons[0])))
        else:
            self._subscribed.set_result(None)

    def _on_message(self, client: mqtt.Client, userdata: Any, message: mqtt.MQTTMessage) -> None:
        self.arrived(
            Message(
                message.topic,
                bytes(message.payload),
                message.qos,
                message.retain,
                received_properties(message.properties),
            )
        )


class PahoClient(Client):
    transports = ("tcp", "tls", "ws", "wss", "unix")

    def _subscribe(self, subscription: Subscription, arrival: Arrival | None) -> Subscriber:
        subscriber = PahoSubscriber(self.address, self.version, arrival)
        subscriber.connect(subscription)
        try:
            subscriber.subscribe(subscription)
        except BaseException:
            subscriber.close()
            raise
        return subscriber

    def publish(
        self,
        topic: str,
        *payloads: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        publisher = PahoSubscriber(self.address, self.version)
        publisher.connect()
        try:
            publisher.publish(topic, payloads, qos, retain, properties)
        finally:
            publisher.close()

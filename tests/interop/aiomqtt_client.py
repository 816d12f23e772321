"""aiomqtt, a client for asyncio, in an event loop with its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar
from uuid import uuid4

import aiomqtt
import paho.mqtt.client as mqtt

from .client import SECONDS, Address, Arrival, Client, Message, Properties, Subscriber, Subscription
from .paho_client import (
    TRANSPORTS,
    connect_properties,
    cut,
    publish_properties,
    received_properties,
    subscribe_properties,
    tls_context,
)

Result = TypeVar("Result")


class Loop:
    """An event loop in a thread, for tests that are not coroutines."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the loop and return what it returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(SECONDS)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


def _client(address: Address, version: int, subscription: Subscription | None = None) -> aiomqtt.Client:
    session = subscription.session if subscription else None
    will = subscription.will if subscription else None
    return aiomqtt.Client(
        address.path if address.transport == "unix" else address.host,
        address.port or 1883,
        identifier=subscription.client_id if subscription else "interop-" + uuid4().hex,
        protocol=aiomqtt.ProtocolVersion(version),
        transport=TRANSPORTS[address.transport],
        websocket_path=address.path if address.transport in ("ws", "wss") else None,
        tls_context=tls_context(address),
        will=aiomqtt.Will(will.topic, will.payload, will.qos) if will else None,
        clean_session=None if version == 5 else session is None,
        clean_start=session is None if version == 5 else mqtt.MQTT_CLEAN_START_FIRST_ONLY,
        properties=connect_properties(version, session),
        timeout=SECONDS,
    )


class AiomqttSubscriber(Subscriber):
    """One aiomqtt client, and a task that reads its messages."""

    def __init__(
        self, loop: Loop, address: Address, version: int, subscription: Subscription, arrival: Arrival | None
    ) -> None:
        super().__init__(arrival)
        self._loop = loop
        self._closed = False
        loop.run(self._open(address, version, subscription))

    async def _open(self, address: Address, version: int, subscription: Subscription) -> None:
        self._client = _client(address, version, subscription)
        await self._client.__aenter__()
        self._taking = asyncio.create_task(self._take())
        await self._client.subscribe(
            subscription.topic_filter,
            subscription.qos,
            properties=subscribe_properties(subscription.identifier),
        )

    async def _take(self) -> None:
        with suppress(aiomqtt.MqttError):  # the end of the connection
            async for message in self._client.messages:
                assert isinstance(message.payload, bytes)
                self.arrived(
                    Message(
                        message.topic.value,
                        message.payload,
                        message.qos,
                        message.retain,
                        received_properties(message.properties),
                    )
                )

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.run(self._close())

    async def _close(self) -> None:
        await self._client.__aexit__(None, None, None)
        await self._taking

    def break_connection(self) -> None:
        cut(self._client._client.socket())


class AiomqttClient(Client):
    transports = ("tcp", "tls", "ws", "wss", "unix")

    def __init__(self, address: Address, version: int, loop: Loop) -> None:
        super().__init__(address, version)
        self._loop = loop

    def _subscribe(self, subscription: Subscription, arrival: Arrival | None) -> Subscriber:
        return AiomqttSubscriber(self._loop, self.address, self.version, subscription, arrival)

    def publish(
        self,
        topic: str,
        *payloads: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        self._loop.run(self._publish(topic, payloads, qos, retain, properties))

    async def _publish(
        self, topic: str, payloads: tuple[bytes, ...], qos: int, retain: bool, properties: Properties | None
    ) -> None:
        async with _client(self.address, self.version) as client:
            for payload in payloads:
                await client.publish(topic, payload, qos, retain, publish_properties(properties))

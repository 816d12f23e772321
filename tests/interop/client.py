"""The interface through which tests use every client library and tool."""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

SECONDS = 20.0
"""How long anything is waited for."""

SESSION_EXPIRY = 3600
"""Seconds that an MQTT 5.0 session outlasts its connection, if it is to outlast it."""

VERSIONS = {"3.1.1": 4, "5.0": 5}
"""The versions of MQTT, and the protocol level that stands for each in CONNECT."""


@dataclass(frozen=True, slots=True)
class Address:
    """A listener of the broker, with the certificates needed to connect."""

    transport: str
    """One of tcp, tls, ws, wss, unix."""
    port: int = 0
    path: str = ""
    """The Unix socket's file, or the WebSocket's path."""
    ca: Path | None = None
    """The authority that signed the broker's certificate."""
    certificate: Path | None = None
    """The client's own certificate and key."""
    host: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files of an authority, and of the certificates and keys that it signed."""

    ca: Path
    server: Path
    client: Path


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of an MQTT 5.0 message."""

    user: tuple[tuple[str, str], ...] = ()
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    expiry: int | None = None
    subscription_identifiers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a subscriber received it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool = False
    properties: Properties = field(default_factory=Properties)


@dataclass(frozen=True, slots=True)
class Will:
    """A message that the broker publishes if the connection breaks."""

    topic: str
    payload: bytes
    qos: int = 1


@dataclass(frozen=True, slots=True)
class Subscription:
    """The filter, options and session of a subscriber."""

    topic_filter: str
    qos: int = 0
    identifier: int | None = None
    session: str | None = None
    """The client identifier of a session that outlasts the connection; without one, nothing does."""
    will: Will | None = None
    client_id: str = field(default_factory=lambda: "interop-" + uuid4().hex)


class Refused(Exception):
    """The broker refused the connection."""


Arrival = Callable[[Message], object]


class Subscriber(ABC):
    """A connection with one acknowledged subscription."""

    def __init__(self, arrival: Arrival | None = None) -> None:
        self._messages: queue.Queue[Message] = queue.Queue()
        self.arrived: Arrival = arrival or self._messages.put
        """What is called with each message, in a thread of the client's."""

    def receive(self) -> Message:
        """Return the next message, in order of arrival."""
        return self._messages.get(timeout=SECONDS)

    def receive_many(self, number: int) -> list[Message]:
        return [self.receive() for _ in range(number)]

    @abstractmethod
    def close(self) -> None:
        """Disconnect with DISCONNECT. A second call does nothing."""

    @abstractmethod
    def break_connection(self) -> None:
        """End the connection without DISCONNECT."""


class Client(ABC):
    """One client library or tool, at one address, with one version of MQTT."""

    transports: tuple[str, ...]
    """The transports that it can use."""

    def __init__(self, address: Address, version: int) -> None:
        self.address = address
        self.version = version
        self._subscribers: list[Subscriber] = []

    def subscribe(
        self,
        topic_filter: str,
        *,
        qos: int = 0,
        identifier: int | None = None,
        session: str | None = None,
        will: Will | None = None,
        arrival: Arrival | None = None,
    ) -> Subscriber:
        """Connect and subscribe; return once the broker has acknowledged it."""
        named = {"client_id": session} if session is not None else {}
        subscription = Subscription(topic_filter, qos, identifier, session, will, **named)
        subscriber = self._subscribe(subscription, arrival)
        self._subscribers.append(subscriber)
        return subscriber

    @abstractmethod
    def _subscribe(self, subscription: Subscription, arrival: Arrival | None) -> Subscriber: ...

    @abstractmethod
    def publish(
        self,
        topic: str,
        *payloads: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """Connect, publish, and disconnect once every acknowledgement has come."""

    def close(self) -> None:
        """Close every subscriber."""
        for subscriber in self._subscribers:
            subscriber.close()


ClientFactory = Callable[[str, str, str], Client]
"""From the names of a client, a transport and a version to such a client."""

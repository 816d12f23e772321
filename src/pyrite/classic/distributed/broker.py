"""The functions of the distributed broker.

    registerPublisher(); createTopic("news"); send("news", "Hello, world!"); deleteTopic("news")
    registerSubscriber(); subscribe("news"); print(pull("news"))

Each process is one publisher and one subscriber; whoever wants to be several makes objects of `Publisher` and
`Subscriber` himself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import common  # noqa: F401
from pyrite.client.line import LineClient

HOST, PORT = "localhost", 5555
MOST = 10_000
"""Messages that one pull returns at most."""


class Publisher:
    """One publisher."""

    def __init__(self, host: str = HOST, port: int = PORT) -> None:
        self._client = LineClient(host, port)

    def createTopic(self, topic: str) -> None:
        """Create a topic."""
        self._client.create(topic)

    def createTopics(self, topics: Sequence[str]) -> None:
        """Create many topics."""
        self._client.create_many(topics)

    def send(self, topic: str, message: str) -> None:
        """Send a message to all subscribers of a topic; return when it is on disk."""
        self._client.publish(topic, message.encode())

    def sendAll(self, topic: str, messages: Sequence[str]) -> None:
        """Send many messages."""
        self._client.publish_many(topic, [message.encode() for message in messages])

    def deleteTopic(self, topic: str) -> None:
        """Delete a topic."""
        self._client.delete(topic)

    def close(self) -> None:
        """End the connection."""
        self._client.close()


class Subscriber:
    """One subscriber. Under a name of its own it finds what came while it was away."""

    def __init__(self, name: str = "", host: str = HOST, port: int = PORT) -> None:
        self._name = name or uuid4().hex
        self._client = LineClient(host, port)

    def subscribe(self, topic: str) -> None:
        """Subscribe to a topic: from now on its messages can be pulled."""
        self._client.register(self._consumer(topic), topic, start="latest")

    def pull(self, topic: str) -> list[str]:
        """Return what is new on a topic for this subscriber: each message once."""
        pulled = self._client.pull(self._consumer(topic), MOST)
        return [message.payload.decode("utf-8", "replace") for message in pulled]

    def _consumer(self, topic: str) -> str:
        return f"{self._name}/{topic}"

    def close(self) -> None:
        """End the connection."""
        self._client.close()


_publishers: list[Publisher] = []
_subscribers: list[Subscriber] = []


def registerPublisher(host: str = HOST, port: int = PORT) -> None:
    """Make this process a publisher."""
    _publishers[:] = [Publisher(host, port)]


def createTopic(topic: str) -> None:
    """Create a topic."""
    _publisher().createTopic(topic)


def send(topic: str, message: str) -> None:
    """Send a message to all subscribers of a topic; return when it is on disk."""
    _publisher().send(topic, message)


def deleteTopic(topic: str) -> None:
    """Delete a topic."""
    _publisher().deleteTopic(topic)


def registerSubscriber(name: str = "", host: str = HOST, port: int = PORT) -> None:
    """Make this process a subscriber."""
    _subscribers[:] = [Subscriber(name, host, port)]


def subscribe(topic: str) -> None:
    """Subscribe to a topic."""
    _subscriber().subscribe(topic)


def pull(topic: str) -> list[str]:
    """Return what is new on a topic for this subscriber: each message once."""
    return _subscriber().pull(topic)


def _publisher() -> Publisher:
    if not _publishers:
        raise RuntimeError("call registerPublisher() first")
    return _publishers[0]


def _subscriber() -> Subscriber:
    if not _subscribers:
        raise RuntimeError("call registerSubscriber() first")
    return _subscribers[0]

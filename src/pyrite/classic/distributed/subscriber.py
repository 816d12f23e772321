"""A subscriber of the distributed broker, as a program that prints new messages and as functions.

subscriber.py --subscribe my_topic [--name NAME]

from subscriber import registerSubscriber, subscribe, pull
"""

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # run or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

import argparse
import atexit
import hashlib
import signal
import time
from collections.abc import Sequence
from uuid import uuid4

from pyrite.classic import common
from pyrite.classic.distributed.server import HOST, PORT
from pyrite.client.line import LineError

MAX_PULLED = 10_000
"""Maximum number of messages returned by one pull."""
MAX_CONSUMER_NAME = 256
"""Maximum length of a consumer's name in characters."""
POLL_INTERVAL = 0.2
"""Seconds to wait after a pull without messages."""


class Subscriber:
    """A subscriber. With a name, it continues where it stopped."""

    def __init__(self, name: str = "", host: str = HOST, port: int = PORT) -> None:
        self._name = name or uuid4().hex
        self._lasts = bool(name)
        self._subscribed: set[str] = set()
        self._client = common.connect(host, port)

    def subscribe(self, topic: str) -> None:
        """Subscribe to a topic: messages sent from now on can be pulled."""
        self._client.register(self._consumer(topic), topic, start="latest")
        self._subscribed.add(topic)

    def pull(self, topic: str) -> list[str]:
        """Return the messages of a topic that this subscriber has not pulled yet, each once.

        Raises LineError if the topic was deleted, or is not subscribed to.
        """
        try:
            pulled = self._client.pull(self._consumer(topic), MAX_PULLED)
        except LineError as error:
            if error.code == "no-topic":
                raise LineError(error.code, f"Topic '{topic}' was deleted") from None
            if error.code == "bad-consumer":
                raise LineError(error.code, f"Not subscribed to '{topic}'") from None
            raise
        return [message.payload.decode("utf-8", "replace") for message in pulled]

    def _consumer(self, topic: str) -> str:
        """Return the name of the consumer for this subscriber and a topic."""
        consumer = f"{self._name}/{topic}"
        if len(consumer) > MAX_CONSUMER_NAME or not consumer.isprintable():
            consumer = f"{self._name}/{hashlib.sha256(topic.encode()).hexdigest()}"
        return consumer

    def close(self) -> None:
        """Close the connection. The broker keeps nothing of a subscriber without a name."""
        try:
            if not self._lasts:
                for topic in self._subscribed:
                    self._client.unregister(self._consumer(topic))
        except (OSError, LineError):
            pass  # the server has closed the connection
        self._client.close()


# The functions use the subscriber that the process registered last.
_registered: list[Subscriber] = []


def registerSubscriber(name: str = "", host: str = HOST, port: int = PORT) -> None:
    """Register this process as a subscriber."""
    subscriber = Subscriber(name, host, port)
    for earlier in _registered:
        earlier.close()
    _registered[:] = [subscriber]


@atexit.register
def _close() -> None:
    """Close the connection when the process ends."""
    for subscriber in _registered:
        subscriber.close()


def subscribe(topic: str) -> None:
    """Subscribe to a topic: messages sent from now on can be pulled."""
    _subscriber().subscribe(topic)


def pull(topic: str) -> list[str]:
    """Return new messages of a topic, each once; raises LineError if the topic was deleted."""
    return _subscriber().pull(topic)


def _subscriber() -> Subscriber:
    if not _registered:
        raise RuntimeError("call registerSubscriber() first")
    return _registered[0]


@common.program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog=common.name(), description="a subscriber of the distributed broker")
    parser.add_argument("--host", default=HOST, help="where the server listens (default: %(default)s)")
    parser.add_argument("--port", type=common.port, default=PORT, help="(default: %(default)s)")
    parser.add_argument("--subscribe", required=True, metavar="TOPIC", help="print the messages of a topic")
    parser.add_argument("--name", default="", help="receive what came while away under the same name")
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as after Ctrl-C
    registerSubscriber(asked.name, asked.host, asked.port)
    subscribe(asked.subscribe)
    print(f"Subscribed to '{asked.subscribe}'", flush=True)
    while True:
        messages = pull(asked.subscribe)
        for message in messages:
            print(message, flush=True)
        if not messages:
            time.sleep(POLL_INTERVAL)


if __name__ == "__main__":
    sys.exit(main())

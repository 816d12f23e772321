"""A publisher of the distributed broker, as a program and as functions.

publisher.py --create my_topic
publisher.py --publish my_topic "Hello, world!"
publisher.py --delete my_topic

from publisher import registerPublisher, createTopic, send, deleteTopic
"""

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # run or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

import argparse
from collections.abc import Sequence

from pyrite.classic import common
from pyrite.classic.distributed.server import HOST, PORT
from pyrite.client.line import LineError


class Publisher:
    """A publisher with its own connection."""

    def __init__(self, host: str = HOST, port: int = PORT) -> None:
        self._client = common.connect(host, port)

    def createTopic(self, topic: str) -> None:
        """Create a topic; raises LineError if it already exists."""
        try:
            self._client.create(topic, new=True)
        except LineError as error:
            if error.code != "exists":
                raise
            raise LineError(error.code, f"Topic '{topic}' already exists") from None

    def createTopics(self, topics: Sequence[str]) -> None:
        """Create many topics without waiting for each; existing ones are unchanged."""
        self._client.create_many(topics)

    def send(self, topic: str, message: str) -> None:
        """Send a message to all subscribers of a topic; returns once it is on disk."""
        self._client.publish(topic, message.encode())

    def sendAll(self, topic: str, messages: Sequence[str]) -> None:
        """Send many messages without waiting for each; returns once all are on disk."""
        self._client.publish_many(topic, [message.encode() for message in messages])

    def deleteTopic(self, topic: str) -> None:
        """Delete a topic."""
        self._client.delete(topic)

    def deleteTopics(self, topics: Sequence[str]) -> None:
        """Delete many topics without waiting for each."""
        self._client.delete_many(topics)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


# The functions use the publisher that the process registered last.
_registered: list[Publisher] = []


def registerPublisher(host: str = HOST, port: int = PORT) -> None:
    """Register this process as a publisher."""
    publisher = Publisher(host, port)
    for earlier in _registered:
        earlier.close()
    _registered[:] = [publisher]


def createTopic(topic: str) -> None:
    """Create a topic; raises LineError if it already exists."""
    _publisher().createTopic(topic)


def send(topic: str, message: str) -> None:
    """Send a message to all subscribers of a topic; returns once it is on disk."""
    _publisher().send(topic, message)


def deleteTopic(topic: str) -> None:
    """Delete a topic."""
    _publisher().deleteTopic(topic)


def _publisher() -> Publisher:
    if not _registered:
        raise RuntimeError("call registerPublisher() first")
    return _registered[0]


@common.program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog=common.name(), description="a publisher of the distributed broker")
    parser.add_argument("--host", default=HOST, help="where the server listens (default: %(default)s)")
    parser.add_argument("--port", type=common.port, default=PORT, help="(default: %(default)s)")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--create", metavar="TOPIC", help="create a topic")
    what.add_argument("--publish", nargs=2, metavar=("TOPIC", "MESSAGE"), help="send a message")
    what.add_argument("--delete", metavar="TOPIC", help="delete a topic")
    asked = parser.parse_args(arguments)
    registerPublisher(asked.host, asked.port)
    if asked.create is not None:
        createTopic(asked.create)
        print(f"Topic '{asked.create}' created")
    elif asked.delete is not None:
        deleteTopic(asked.delete)
        print(f"Topic '{asked.delete}' deleted")
    else:
        send(*asked.publish)
        print(f"Message sent to '{asked.publish[0]}'")
    _publisher().close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The client of Dallal.

client.py [--udp] HOST PORT publish TOPIC MESSAGE
client.py [--udp] HOST PORT subscribe TOPIC...
"""

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # run or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

import argparse
import threading
from collections.abc import Callable, Sequence
from queue import Queue

from pyrite.classic import common
from pyrite.cli.errors import reason_of
from pyrite.client.line import (
    DEFAULT_PING_INTERVAL,
    DEFAULT_TIMEOUT,
    LineClient,
    LineError,
    LineMessage,
)

FAILURES = (OSError, LineError, UnicodeError)
Connect = Callable[[], LineClient]


def publish(connect: Connect, topic: str, message: str) -> int:
    """Publish a message; prints whether it was acknowledged."""
    try:
        if not message.isascii():
            raise LineError("bad-message", "a message is ASCII text, and this one has other characters")
        with connect() as client:
            client.publish(topic, message.encode())
    except FAILURES as error:
        print("your message publishing failed")
        print(_reason(error), file=sys.stderr)
        return 1
    print("your message published successfully")
    return 0


def subscribe(connect: Connect, topics: Sequence[str], latest: bool, udp: bool) -> int:
    """Subscribe to topics and print messages until the server closes the connection.

    Each topic has its own connection; over UDP, one socket serves all.
    """
    clients: list[LineClient] = []
    try:
        try:
            for topic in topics:
                if not clients or not udp:
                    clients.append(connect())
                clients[-1].subscribe(topic, ack=not latest, latest=latest)
        except FAILURES as error:
            print("subscribing failed")
            print(_reason(error), file=sys.stderr)
            return 1
        print("subscribing on", *topics, flush=True)
        received: Queue[LineMessage | None] = Queue(1)  # a message is acknowledged once it fits in here
        for client in clients:
            threading.Thread(target=_pass_on, args=(client, received), daemon=True).start()
        for message in iter(received.get, None):
            print(f"{message.topic}: {message.payload.decode('ascii', 'backslashreplace')}", flush=True)
        last_words = next((client.last_error for client in clients if client.last_error), "")
        print(last_words or "the server ended the connection", file=sys.stderr)
        return 1
    finally:
        for client in clients:
            client.close()


def _pass_on(client: LineClient, received: Queue[LineMessage | None]) -> None:
    for message in client.messages():
        received.put(message)
    received.put(None)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"the server cannot be reached: {reason_of(error)}"
    return "this is not valid text" if isinstance(error, UnicodeError) else str(error)


def run(arguments: Sequence[str] | None, *, usual_port: int, latest: bool, udp: bool) -> int:
    """Run a client of Dallal or of the message broker.

    With `latest`, a newer message on a topic replaces one that waits; without it, every message is delivered.
    """
    parser = argparse.ArgumentParser(
        prog=common.name(),
        description="publish and subscribe",
        epilog=f"example: client.py localhost {usual_port} publish news hello",
    )
    if udp:
        parser.add_argument("--udp", action="store_true", help="speak UDP (port 1234) instead of TCP")
    parser.add_argument("--ping-interval", type=float, default=DEFAULT_PING_INTERVAL, help=argparse.SUPPRESS)
    parser.add_argument("host")
    parser.add_argument("port", type=common.port)
    commands = parser.add_subparsers(dest="command", required=True)
    # Words after the command are text, even if they start with a dash.
    publishing = commands.add_parser("publish", help="publish a message", prefix_chars="\0", add_help=False)
    publishing.add_argument("topic")
    publishing.add_argument("message")
    subscribing = commands.add_parser(
        "subscribe", help="print the messages of topics", prefix_chars="\0", add_help=False
    )
    subscribing.add_argument("topics", nargs="+", metavar="topic")
    asked = parser.parse_args(arguments)
    over_udp = udp and asked.udp

    def notice(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def connect() -> LineClient:
        return LineClient(
            asked.host,
            asked.port,
            over_udp,
            DEFAULT_TIMEOUT,
            ping_interval=asked.ping_interval,
            notice=notice,
        )

    if asked.command == "publish":
        return publish(connect, asked.topic, asked.message)
    return subscribe(connect, asked.topics, latest, over_udp)


@common.program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    return run(arguments, usual_port=1373, latest=True, udp=True)


if __name__ == "__main__":
    sys.exit(main())

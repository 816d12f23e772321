"""The client of Dallal, and of the message broker.

client.py [--udp] HOST PORT publish TOPIC MESSAGE
client.py [--udp] HOST PORT subscribe TOPIC...
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # started or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

import argparse
import threading
from collections.abc import Sequence
from queue import SimpleQueue

from pyrite.client.line import LineClient, LineError, LineMessage

TIMEOUT = 10.0
"""Seconds that PubAck and SubAck may take."""


def publish(host: str, port: int, udp: bool, topic: str, message: str) -> int:
    """Publish a message, and say whether it was acknowledged."""
    try:
        with LineClient(host, port, udp, TIMEOUT) as client:
            client.publish(topic, message.encode())
    except (OSError, LineError) as error:
        print("your message publishing failed")
        print(error, file=sys.stderr)
        return 1
    print("your message published successfully")
    return 0


def subscribe(host: str, port: int, udp: bool, topics: Sequence[str]) -> int:
    """Subscribe to topics, over a connection each, and print their messages until the broker ends."""
    clients: list[LineClient] = []
    try:
        try:
            for topic in topics:
                clients.append(LineClient(host, port, udp, TIMEOUT))
                clients[-1].subscribe(topic, latest=True)
        except (OSError, LineError) as error:
            print("subscribing failed")
            print(error, file=sys.stderr)
            return 1
        print("subscribing on", *topics, flush=True)
        came: SimpleQueue[LineMessage | None] = SimpleQueue()
        for client in clients:
            threading.Thread(target=_pass_on, args=(client, came), daemon=True).start()
        while (message := came.get()) is not None:
            print(f"{message.topic}: {message.payload.decode('ascii', 'replace')}", flush=True)
        print(next((client.last_error for client in clients if client.closed), ""), file=sys.stderr)
        return 1
    finally:
        for client in clients:
            client.close()


def _pass_on(client: LineClient, came: SimpleQueue[LineMessage | None]) -> None:
    for message in client.messages():
        came.put(message)
    came.put(None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(
        prog="client.py",
        description="publish and subscribe",
        epilog="example: client.py localhost 1373 publish news hello",
    )
    parser.add_argument("--udp", action="store_true", help="speak UDP (port 1234) instead of TCP (port 1373)")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    commands = parser.add_subparsers(dest="command", required=True)
    publishing = commands.add_parser("publish", help="publish a message")
    publishing.add_argument("topic")
    publishing.add_argument("message")
    subscribing = commands.add_parser("subscribe", help="print the messages of topics")
    subscribing.add_argument("topics", nargs="+", metavar="topic")
    asked = parser.parse_args(arguments)
    try:
        if asked.command == "publish":
            return publish(asked.host, asked.port, asked.udp, asked.topic, asked.message)
        return subscribe(asked.host, asked.port, asked.udp, asked.topics)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

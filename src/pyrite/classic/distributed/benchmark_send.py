"""How many messages several clients send a second, each acknowledged when it is on disk.

benchmark_send.py [--clients 4] [--count 50000]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic.distributed.benchmark import run
from pyrite.classic.distributed.broker import Publisher


def send(publisher: Publisher, number: int, start: int, count: int) -> None:
    """Send messages on a topic of this client's own."""
    topic = f"benchmark-send-{number}"
    if start == 0:
        publisher.createTopic(topic)
    publisher.sendAll(topic, [f"message {at} of client {number}" for at in range(start, start + count)])


if __name__ == "__main__":
    sys.exit(run("send", "messages", send))

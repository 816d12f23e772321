"""The time until a replay of the log from its beginning, filtered by topic, sends its first message."""

from __future__ import annotations

import statistics
import time

from pyrite.client import BlockingClient

from .generator import Figures

COMMON = [f"bench/{number:06}" for number in (3, 250, 500, 750, 999)]
"""Topics of the load generator."""
RARE = "bench/rare"


def measure(port: int) -> Figures:
    """Replay several topics, each by a client of its own, and then one whose only message is the newest."""
    with BlockingClient(f"mqtt://127.0.0.1:{port}") as client:
        client.publish(RARE, b"found", qos=1)
    common = [_first_message_ms(port, topic) for topic in COMMON]
    rare = [_first_message_ms(port, RARE) for _ in COMMON]
    return {"first_message_ms": statistics.median(common), "first_rare_ms": statistics.median(rare)}


def _first_message_ms(port: int, topic: str) -> float:
    with BlockingClient(f"mqtt://127.0.0.1:{port}") as client:
        start = time.perf_counter()
        with client.subscribe(topic, qos=1, start="earliest") as messages:
            messages.get(timeout=60)
            return 1000 * (time.perf_counter() - start)

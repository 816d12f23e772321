"""The longest block of the broker's event loop, as the broker measures it."""

from __future__ import annotations

import time

from pyrite.client import BlockingClient

from .generator import MeasurementError

LONGEST_BLOCK = "$SYS/broker/loop/longest block"  # milliseconds, since the broker's start
UPTIME = "$SYS/broker/uptime"  # changes with every round of figures
ROUND_LIMIT = 30.0  # seconds; a round is due every 10
REST_OF_ROUND = 0.5  # seconds for the other figures of a round


def longest_block_ms(port: int) -> float:
    """Return the longest block, from the next round of figures: it includes all before this call."""
    longest, deadline, is_new_round = None, time.monotonic() + ROUND_LIMIT, False
    with (
        BlockingClient(f"mqtt://127.0.0.1:{port}") as client,
        client.subscribe([LONGEST_BLOCK, UPTIME]) as messages,
    ):
        while (left := deadline - time.monotonic()) > 0:
            try:
                message = messages.get(timeout=left)
            except TimeoutError:
                break
            if message.topic == LONGEST_BLOCK:
                longest = float(message.payload)
            elif not message.retain and not is_new_round:
                is_new_round, deadline = True, time.monotonic() + REST_OF_ROUND
    if longest is None or not is_new_round:
        raise MeasurementError(f"the broker does not publish {LONGEST_BLOCK}")
    return longest

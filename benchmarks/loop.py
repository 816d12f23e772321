"""The longest time that the broker's event loop was blocked, as the broker itself tells it in $SYS."""

from __future__ import annotations

import time

from pyrite.client import BlockingClient

from .generator import MeasurementError

LONGEST_BLOCK = "$SYS/broker/loop/longest block by the log"  # milliseconds, the most since the broker's start
UPTIME = "$SYS/broker/uptime"  # changes with every round of figures, so it tells that there was one
ROUND_LIMIT = 30.0  # seconds; a round is due every 10
REST_OF_ROUND = 0.5  # seconds in which the other figures of a round have come too


def longest_block_ms(port: int) -> float:
    """Wait for the next round of figures, so that nothing before this call is missed; return the longest."""
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

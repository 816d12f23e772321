"""The mean temperature of every room since the beginning of the log.

python examples/replay.py [URL]
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict

from pyrite.client import Client

QUIET = 1.0
"""Seconds without a message after which the past is over."""


async def main(url: str) -> None:
    """Read the past, and print a line for each room."""
    readings: defaultdict[str, list[float]] = defaultdict(list)
    async with (
        Client(url) as client,
        client.subscribe("sensors/+/temperature", qos=1, start="earliest") as messages,
    ):
        while True:
            try:
                message = await messages.get(QUIET)
            except TimeoutError:
                break
            readings[message.topic.split("/")[1]].append(float(message.payload))
    for room, values in sorted(readings.items()):
        print(f"room {room}: {sum(values) / len(values):.2f} in {len(values)} readings")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "mqtt://localhost:1883"))

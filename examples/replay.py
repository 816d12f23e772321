"""The mean temperature of every room since the beginning of the log.

python examples/replay.py [URL]
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from uuid import uuid4

from pyrite.client import Client


async def main(url: str) -> int:
    """Fetch the readings in the log, and print a line for each room."""
    readings: defaultdict[str, list[float]] = defaultdict(list)
    async with Client(url) as client:
        consumer = await client.consumer(f"replay-{uuid4()}", "sensors/+/temperature", start="earliest")
        while messages := await consumer.pull(1_000):
            for message in messages:
                readings[message.topic.split("/")[1]].append(float(message.payload))
            await consumer.ack(messages)
        await consumer.delete()
    if not readings:
        print("no readings in the log: run thermometers.py first", file=sys.stderr)
        return 1
    for room, values in sorted(readings.items()):
        print(f"room {room}: {sum(values) / len(values):.2f} in {len(values)} readings")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "mqtt://localhost:1883")))

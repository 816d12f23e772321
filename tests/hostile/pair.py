"""A regular publisher and subscriber: `python -m tests.hostile.pair URL SECONDS`.

Prints as JSON the numbers of QoS 1 messages sent and received, and their latencies.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time

from pyrite.client.aio import Client

RATE = 100
"""Messages a second."""
PATIENCE = 60.0
"""Seconds in which the last message must have come."""
TOPIC = "well/behaved"
ADDRESS = "127.0.0.2"
"""The address of their machine; attackers have another."""
_BODY = struct.Struct(">Qd")


async def measure(url: str, seconds: float) -> dict[str, float]:
    """Send messages for some seconds, and return the counts and latencies."""
    delays: dict[int, float] = {}
    came: list[int] = []
    async with (
        Client(url, client_id="listener", bind_address=ADDRESS) as listener,
        Client(url, client_id="speaker", bind_address=ADDRESS) as speaker,
        listener.subscribe(TOPIC, qos=1) as messages,
    ):

        async def hear(total: int) -> None:
            async for message in messages:
                number, sent = _BODY.unpack(message.payload)
                came.append(number)
                delays.setdefault(number, time.perf_counter() - sent)
                if len(delays) == total:
                    return

        total = int(seconds * RATE)
        hearing = asyncio.create_task(hear(total))
        start = time.perf_counter()
        for number in range(total):
            await asyncio.sleep(start + number / RATE - time.perf_counter())
            await speaker.publish(TOPIC, _BODY.pack(number, time.perf_counter()), qos=1)
        await asyncio.wait([hearing], timeout=PATIENCE)
        hearing.cancel()
    taken = sorted(delays.values()) or [float("inf")]
    return {
        "sent": total,
        "received": len(delays),
        "repeated": len(came) - len(set(came)),
        "in_order": came == sorted(came),
        "p50": taken[len(taken) // 2],
        "p99": taken[len(taken) * 99 // 100],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1], float(sys.argv[2])))))

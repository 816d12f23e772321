"""Ten thermometers publish a hundred readings each, acknowledged by the broker.

python examples/thermometers.py [URL]
"""

from __future__ import annotations

import asyncio
import math
import sys
import time

from pyrite.client import Client, Will

ROOMS = 10
READINGS = 100


async def main(url: str) -> None:
    """Publish all readings; the will reports if this program dies before it is done."""
    will = Will("alarms/thermometers", b"gone", qos=1)
    async with Client(url, client_id="thermometers", will=will) as client:
        began = time.perf_counter()
        # Published without waiting for each, so the client sends them in a few large writes.
        acknowledgements = [
            client.publish_soon(f"sensors/{room}/temperature", f"{20 + math.sin(number / 10 + room):.2f}", 1)
            for number in range(READINGS)
            for room in range(ROOMS)
        ]
        await asyncio.gather(*acknowledgements)
        took = time.perf_counter() - began
        print(f"{len(acknowledgements)} readings are on disk after {took:.2f} s")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "mqtt://localhost:1883"))

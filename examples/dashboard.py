"""Shows the latest temperature of every room, and alarms; messages sent while it is away are not missed.

python examples/dashboard.py [URL] [MESSAGES]     ends after so many messages, or with Ctrl-C
"""

from __future__ import annotations

import asyncio
import sys

from pyrite.client import Client, ClientError

DAY = 24 * 60 * 60


def lost(error: ClientError) -> None:
    """Report a lost connection; the client reconnects."""
    print(error, file=sys.stderr)


async def main(url: str, max_messages: float) -> None:
    """Print messages as they arrive."""
    latest: dict[str, float] = {}
    shown = 0
    async with Client(url, client_id="dashboard", session_expiry=DAY, on_disconnect=lost) as client:
        # Without `async with`, the session keeps the subscription when this program ends.
        messages = await client.subscribe(["sensors/+/temperature", "alarms/#"], qos=1)
        print("watching", flush=True)
        async for message in messages:
            if message.topic.startswith("alarms/"):
                print("ALARM", message.topic, message.payload.decode(), flush=True)
            else:
                room = message.topic.split("/")[1]
                latest[room] = float(message.payload)
                print(*(f"{name}: {value:.1f}" for name, value in sorted(latest.items())), flush=True)
            shown += 1
            if shown >= max_messages:
                break


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else "mqtt://localhost:1883"
    try:
        asyncio.run(main(where, float(sys.argv[2]) if len(sys.argv) > 2 else float("inf")))
    except KeyboardInterrupt:
        pass

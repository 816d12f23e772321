"""Prints the messages of a topic filter as they arrive, without asyncio.

python examples/tail.py [URL] [FILTER]     ends with Ctrl-C
"""

from __future__ import annotations

import sys

from pyrite.client import BlockingClient


def main(url: str, topic_filter: str) -> None:
    """Print messages as they arrive."""
    with BlockingClient(url) as client, client.subscribe(topic_filter, qos=1) as messages:
        print("following", *messages.filters, flush=True)
        for message in messages:
            print(message.topic, message.payload.decode("utf-8", "backslashreplace"), flush=True)


if __name__ == "__main__":
    try:
        main(
            sys.argv[1] if len(sys.argv) > 1 else "mqtt://localhost:1883",
            sys.argv[2] if len(sys.argv) > 2 else "#",
        )
    except KeyboardInterrupt:
        pass

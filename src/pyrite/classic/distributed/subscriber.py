"""A subscriber of the distributed broker: pulls new messages and prints them.

subscriber.py --subscribe my_topic [--name NAME]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic.distributed.broker import HOST, PORT, Subscriber
from pyrite.client.line import LineError

PAUSE = 0.2
"""Seconds between two pulls when there was nothing new."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="subscriber.py", description="a subscriber")
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--subscribe", required=True, metavar="TOPIC", help="print the messages of a topic")
    parser.add_argument("--name", default="", help="to find what came while away, under the same name")
    asked = parser.parse_args(arguments)
    try:
        subscriber = Subscriber(asked.name, asked.host, asked.port)
        try:
            subscriber.subscribe(asked.subscribe)
            print(f"Subscribed to '{asked.subscribe}'", flush=True)
            while True:
                messages = subscriber.pull(asked.subscribe)
                for message in messages:
                    print(message, flush=True)
                if not messages:
                    time.sleep(PAUSE)
        finally:
            subscriber.close()
    except (OSError, LineError) as error:
        print(f"subscriber.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

"""A publisher of the distributed broker.

publisher.py --create my_topic
publisher.py --publish my_topic "Hello, world!"
publisher.py --delete my_topic
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic.distributed.broker import HOST, PORT, Publisher
from pyrite.client.line import LineError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="publisher.py", description="a publisher")
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--port", type=int, default=PORT)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--create", metavar="TOPIC", help="create a topic")
    what.add_argument("--publish", nargs=2, metavar=("TOPIC", "MESSAGE"), help="send a message")
    what.add_argument("--delete", metavar="TOPIC", help="delete a topic")
    asked = parser.parse_args(arguments)
    try:
        publisher = Publisher(asked.host, asked.port)
        try:
            if asked.create is not None:
                publisher.createTopic(asked.create)
                print(f"Topic '{asked.create}' created")
            elif asked.delete is not None:
                publisher.deleteTopic(asked.delete)
                print(f"Topic '{asked.delete}' deleted")
            else:
                publisher.send(*asked.publish)
                print(f"Message sent to '{asked.publish[0]}'")
        finally:
            publisher.close()
    except (OSError, LineError) as error:
        print(f"publisher.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

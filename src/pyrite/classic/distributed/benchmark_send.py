"""Messages sent per second by several clients, with send() and in batches; each is acknowledged on disk.

benchmark_send.py [--host HOST] [--port PORT] [--clients 4] [--count 5000]
"""

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # run or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

from collections.abc import Sequence

from pyrite.classic import common
from pyrite.classic.distributed.benchmark import Benchmark, run
from pyrite.classic.distributed.publisher import Publisher


def prepare(publisher: Publisher, prefix: str) -> None:
    """Create a topic for this client."""
    publisher.createTopic(prefix)


def send(publisher: Publisher, prefix: str, first: int, count: int) -> None:
    """Send messages one after the other."""
    for number in range(first, first + count):
        publisher.send(prefix, f"message {number}")


def send_batch(publisher: Publisher, prefix: str, first: int, count: int) -> None:
    """Send messages without waiting for each."""
    publisher.sendAll(prefix, [f"message {number}" for number in range(first, first + count)])


def delete(publisher: Publisher, prefix: str, count: int) -> None:
    """Delete the client's topic."""
    publisher.deleteTopic(prefix)


@common.program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    ways = {"one at a time": send, "in batches": send_batch}
    return run(Benchmark("send", "messages", prepare, ways, delete), arguments)


if __name__ == "__main__":
    sys.exit(main())

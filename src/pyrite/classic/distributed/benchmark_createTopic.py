"""Topics created per second by several clients, with createTopic() and in batches.

benchmark_createTopic.py [--host HOST] [--port PORT] [--clients 4] [--count 5000]
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
    """Prepare nothing: every client creates its own topics."""


def create(publisher: Publisher, prefix: str, first: int, count: int) -> None:
    """Create topics one after the other."""
    for topic in _topics(prefix, first, count):
        publisher.createTopic(topic)


def create_batch(publisher: Publisher, prefix: str, first: int, count: int) -> None:
    """Create topics without waiting for each."""
    publisher.createTopics(_topics(prefix, first, count))


def delete(publisher: Publisher, prefix: str, count: int) -> None:
    """Delete the topics that were created."""
    publisher.deleteTopics(_topics(prefix, 0, count))


def _topics(prefix: str, first: int, count: int) -> list[str]:
    return [f"{prefix}/{number}" for number in range(first, first + count)]


@common.program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    ways = {"one at a time": create, "in batches": create_batch}
    return run(Benchmark("createTopic", "topics", prepare, ways, delete), arguments)


if __name__ == "__main__":
    sys.exit(main())

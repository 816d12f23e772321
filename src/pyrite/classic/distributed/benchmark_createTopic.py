"""How many topics several clients create a second.

benchmark_createTopic.py [--clients 4] [--count 50000]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic.distributed.benchmark import run
from pyrite.classic.distributed.broker import Publisher


def create(publisher: Publisher, number: int, start: int, count: int) -> None:
    """Create topics."""
    publisher.createTopics([f"benchmark/{number}/{at}" for at in range(start, start + count)])


if __name__ == "__main__":
    sys.exit(run("createTopic", "topics", create))

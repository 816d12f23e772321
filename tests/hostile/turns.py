"""Measures the turns of a broker that is driven without sockets, in CPU time, so that noise matters little.

The broker must have `time.thread_time` as its clock: then it looks at what is measured. A turn is one call
into the broker: a read, `take_turns`, `flush` or `tick`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyrite.broker.core import Broker

LARGEST_READ = 256 * 1024
"""Bytes that the server reads from one client at a time."""
MAX_TURN = 0.010
"""Seconds of CPU time that no turn may take: five times what is aimed at."""
MAX_TURNS = 200_000
GC_THRESHOLD = (5_000, 200, 50)
"""As the server sets it."""


@contextmanager
def collector_of_the_server() -> Iterator[None]:
    """Have garbage collected as in the server: what there is at the start is never looked at again."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@dataclass
class Turns:
    """Measures turns, and keeps the longest."""

    longest: float = 0.0
    where: str = ""
    total: float = 0.0
    count: int = 0
    slow: list[str] = field(default_factory=list)

    def take(self, what: str, call: Callable[[], object]) -> None:
        """Make a call, and note how long it took."""
        began = time.thread_time()
        call()
        took = time.thread_time() - began
        self.total += took
        self.count += 1
        if took > self.longest:
            self.longest, self.where = took, what
        if took > MAX_TURN:
            self.slow.append(f"{took * 1e3:.1f} ms, {what[-60:]}")

    def finish(self, broker: Broker, what: str, enough: int = 0) -> None:
        """Give turns, and send what there is to send, until all is done, or after turns that are `enough`."""
        for number in range(MAX_TURNS):
            self.take(f"{what}, flush", broker.flush)
            if not broker.has_interrupted or (enough and number >= enough):
                return
            self.take(f"{what}, turn", broker.take_turns)
        raise AssertionError(f"{what}: not done after {MAX_TURNS} turns")


def check(what: str, attack: Callable[[Turns], object], attempts: int = 3) -> Turns:
    """Make an attack; fail if turns of it are too long, each time.

    A turn may be long by accident: the machine is shared, and caches are cold. A cause shows each time.
    """
    turns = Turns()
    for _ in range(attempts):
        turns = Turns()
        attack(turns)
        if not turns.slow:
            return turns
    raise AssertionError(f"turns of more than {MAX_TURN * 1e3:.0f} ms: {'; '.join(turns.slow[:5])} ({what})")

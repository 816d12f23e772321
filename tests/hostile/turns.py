"""Measures the turns of a broker without sockets in CPU time, which other processes hardly affect.

The broker must use `time.thread_time` as its clock, so that it sees the same time. A turn is one call into
the broker: a read, `take_turns`, `flush` or `tick`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyrite.broker.core import Broker
from pyrite.server.memory import YOUNG_INTERVAL

LARGEST_READ = 256 * 1024
"""Bytes that the server reads from one client at a time."""
MAX_TURN = 0.010
"""Seconds of CPU time that no turn may take: five times what is aimed at."""
MAX_TURNS = 200_000


@contextmanager
def collector_of_the_server() -> Iterator[None]:
    """Leave garbage to `Turns`, which collects it as the server does: objects from the start are frozen."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@dataclass
class Turns:
    """Measures turns and keeps the longest."""

    longest: float = 0.0
    where: str = ""
    total: float = 0.0
    count: int = 0
    slow: list[str] = field(default_factory=list)
    collected_at: float = 0.0
    """The total at the last collection of young garbage."""

    def take(self, what: str, call: Callable[[], object]) -> None:
        """Run a call and record its duration; collect garbage when it is due."""
        self._measure(what, call)
        if self.total - self.collected_at > YOUNG_INTERVAL:
            self.collected_at = self.total
            self._measure(f"{what}, garbage", lambda: gc.collect(0))

    def _measure(self, what: str, call: Callable[[], object]) -> None:
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
        """Run turns and flush until all work is done, or until `enough` turns."""
        for number in range(MAX_TURNS):
            self.take(f"{what}, flush", broker.output.flush)
            if not broker.turns.has_work or (enough and number >= enough):
                return
            self.take(f"{what}, turn", broker.turns.take)
        raise AssertionError(f"{what}: not done after {MAX_TURNS} turns")


def check(what: str, attack: Callable[[Turns], object], attempts: int = 3) -> Turns:
    """Run an attack; fail if its turns are too long at every try.

    A turn may be long by accident, on a shared machine with cold caches. A defect shows each time.
    """
    turns = Turns()
    for _ in range(attempts):
        turns = Turns()
        attack(turns)
        if not turns.slow:
            return turns
    raise AssertionError(f"turns of more than {MAX_TURN * 1e3:.0f} ms: {'; '.join(turns.slow[:5])} ({what})")

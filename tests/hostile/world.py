"""A broker that holds very much, with the test as its event loop, which measures the CPU time of every turn.

The log is on disk, read and written by threads as in the server. Only the event loop's thread is measured.
A turn is what one client, or one piece of work, does before others have theirs.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

from pyrite.broker.core import Broker
from pyrite.broker.limits import Limits
from pyrite.broker.message import Batch
from pyrite.broker.subscriptions import Subscription
from pyrite.broker.turns import Turn, Turns
from pyrite.journal.disk import open_journal
from pyrite.journal.workers import FairThreadWorker, ThreadWorker
from pyrite.protocols.conversation import Conversation
from pyrite.storage.options import StreamOptions

MANY = 100_000
"""Topics, retained messages, cached routes, sessions, subscriptions."""
PATIENCE = 60.0
"""Seconds in which everything that was sent must have been handled."""


class _Timed:
    """A turn whose CPU time is measured."""

    def __init__(self, world: World, turn: Turn) -> None:
        self._world = world
        self._turn = turn

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Timed) and self._turn is other._turn

    def __hash__(self) -> int:
        return hash(id(self._turn))

    def go_on(self) -> None:
        self._world.measure(self._turn.go_on, self._turn)


class _TimedTurns(Turns):
    """A queue that measures each turn by itself."""

    def __init__(self, broker: Broker, world: World) -> None:
        super().__init__(broker)
        self._world = world

    def add(self, turn: Turn) -> None:
        super().add(_Timed(self._world, turn))


class World:
    """A broker that holds MANY of everything."""

    def __init__(self, folder: Path) -> None:
        gc.disable()
        self._posted: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._later: list[tuple[float, Callable[[], object]]] = []
        post = self._posted.put
        self.journal = open_journal(
            folder,
            [StreamOptions(topics=["log/#"])],
            writing=ThreadWorker("test-log", post),
            committing=ThreadWorker("test-state", post),
            reading=FairThreadWorker("test-read", post),
            upkeep=ThreadWorker("test-upkeep", post),
            later=lambda seconds, call: self._later.append((time.monotonic() + seconds, call)),
        )
        self.longest = 0.0
        """CPU time of the longest turn, in seconds."""
        self.culprit = ""
        """What had that turn."""
        self.broker = Broker(Limits(), clock=time.monotonic, journal=self.journal)
        self.broker.turns = _TimedTurns(self.broker, self)
        self.broker.tick(1_000.0)
        self.journal.restore(self.broker)
        self._fill()
        gc.freeze()

    def _fill(self) -> None:
        broker = self.broker
        for number in range(MANY):
            broker.catalog.created[b"created/%d/%d" % (number % 300, number)] = True
            topic = b"kept/%d/%d" % (number % 300, number)
            broker.retained[topic] = Batch(topic, b"a value", 1, True)
        for number in range(MANY):
            session, _ = broker.sessions.open(f"session {number}", True)
            session.expiry = 3_600
            topic_filter = b"kept/%d/%d/#" % (number % 300, number)
            broker.subscribing.subscribe(Subscription(session, topic_filter, number % 2), None, topic_filter)
        self.cache_routes()

    def cache_routes(self) -> None:
        """Fill the route cache, as messages on many topics do."""
        for number in range(MANY):
            self.broker.subscriptions.route(b"kept/%d/%d" % (number % 300, number))

    def measure(self, call: Callable[[], object], what: object) -> None:
        """Run a call and record its duration."""
        began = time.thread_time()
        call()
        took = time.thread_time() - began
        if took > self.longest:
            self.longest, self.culprit = took, repr(what)

    def watch(self) -> None:
        """Reset the measurements."""
        self.longest, self.culprit = 0.0, ""

    def feed(self, connection: Conversation, data: bytes) -> None:
        """Feed bytes to a connection, as a turn."""
        self.measure(lambda: connection.feed(data), connection)
        self.measure(self.broker.output.flush, "flush")

    def run(self, until: Callable[[], bool], seconds: float = PATIENCE) -> bool:
        """Run the event loop until a condition holds and no work is left.

        Return False if that takes more than this CPU time of the thread.
        """
        end, end_of_cpu = time.monotonic() + PATIENCE, time.thread_time() + seconds
        while not until() or self.broker.turns.has_work:
            if time.thread_time() > end_of_cpu:
                return False
            assert time.monotonic() < end, "not everything was handled in time"
            due = [call for when, call in self._later if when <= time.monotonic()]
            self._later = [one for one in self._later if one[0] > time.monotonic()]
            for call in due:
                self.measure(call, "later")
            try:
                # As in the server, those interrupted have a turn between two results of other threads.
                posted = self._posted.get(timeout=0 if self.broker.turns.has_work else 0.05)
                self.measure(posted, f"posted {posted!r}")
            except Empty:
                pass
            self.broker.turns.take()
            self.measure(self.broker.output.flush, "flush")
        return True

    def close(self) -> None:
        """Close the log."""
        gc.unfreeze()
        gc.enable()
        self.journal.close()

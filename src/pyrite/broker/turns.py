"""Work in turns of 2 ms, so that no client delays the others; and back-pressure of the journal."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from pyrite.broker.fanout import MAX_DIRTY
from pyrite.broker.timers import TURN

if TYPE_CHECKING:
    from pyrite.broker.core import Broker

FREES_PER_CLOCK = 256
"""Objects that are freed between two looks at the clock."""


class Turn(Protocol):
    """Work that is done in turns."""

    def go_on(self) -> object:
        """Do some of the work, for at most TURN seconds.

        Return true if the turn let the broker read from a busy client again: its next read may take a turn.
        """


class _Call:
    """A single call, as a turn."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def go_on(self) -> None:
        self._call()


class _Steps:
    """An iterator whose steps are done in turns."""

    __slots__ = ("_broker", "_steps")

    def __init__(self, broker: Broker, steps: Iterator[None]) -> None:
        self._broker = broker
        self._steps = steps

    def go_on(self) -> None:
        clock = self._broker.clock
        until = clock() + TURN
        for _ in self._steps:
            if clock() > until:
                self._broker.turns.add(self)
                return


class Turns:
    """The queue of work that waits for a turn, and the work that waits until the journal has room."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: deque[Turn] = deque()
        self._choked: list[Turn] = []
        """Work that waits until the journal has room."""
        self._unneeded: list[Iterator[None]] = []
        """Iterators that free memory step by step."""

    def add(self, turn: Turn) -> None:
        """Queue work for another turn."""
        if not self._waiting:
            self._broker.wake()
        self._waiting.append(turn)

    def soon(self, call: Callable[[], object]) -> None:
        """Queue a call that would interfere with the work at hand."""
        self.add(_Call(call))

    def work_through(self, steps: Iterator[None]) -> None:
        """Do work one short step at a time, for a turn at once and then in later turns."""
        _Steps(self._broker, steps).go_on()

    @property
    def has_work(self) -> bool:
        """Whether work waits for a turn, or messages wait to be delivered or sent."""
        return bool(self._waiting or self._broker.fan_outs.queue or self._broker.output.links)

    def take(self) -> None:
        """Give turns to the work that has waited longest, for TURN seconds in all.

        The round ends when a client is read from again: so in one round of the event loop, all busy clients
        together take no longer than one alone. Half of the time is for fan-outs, or all of it if nothing else
        waits; but nothing more is delivered before most of what was delivered is sent.
        """
        broker, waiting = self._broker, self._waiting
        until = broker.clock() + TURN
        if broker.fan_outs.queue and len(broker.output.links) <= MAX_DIRTY:
            broker.fan_outs.work(until - TURN / 2 if waiting else until)
        for _ in range(len(waiting)):
            if waiting.popleft().go_on() or broker.clock() > until:
                break

    # Back-pressure

    def wait_for_journal(self, turn: Turn) -> None:
        """Give work its next turn when the journal has written some of what waits to be written."""
        self._choked.append(turn)
        self._broker.journal.choked()

    def is_over(self, turn: Turn, until: float) -> bool:
        """Return whether a turn has to end, at a time or as the journal is full; then queue the next one."""
        if self._broker.journal.full:
            self.wait_for_journal(turn)
        elif self._broker.clock() > until:
            self.add(turn)
        else:
            return False
        return True

    def journal_has_room(self) -> None:
        """Give turns again to the work that waited for the journal."""
        turns, self._choked = self._choked, []
        for turn in turns:
            self.add(turn)

    # Memory

    def free(self, *steps: Iterator[None]) -> None:
        """Free memory in turns: each step of the iterators frees some that nothing else refers to."""
        if not self._unneeded:
            self.soon(self._free_more)
        self._unneeded += steps

    def _free_more(self) -> None:
        until = self._broker.clock() + TURN
        while self._unneeded:
            steps = self._unneeded[-1]
            if sum(1 for _ in islice(steps, FREES_PER_CLOCK)) < FREES_PER_CLOCK:
                self._unneeded.pop()
            if self._unneeded and self._broker.clock() > until:
                self.soon(self._free_more)
                return

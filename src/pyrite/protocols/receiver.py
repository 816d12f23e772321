"""The receiving half of a connection: buffers input, and handles it in turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyrite.broker.link import Link, Transport
from pyrite.broker.timers import TURN
from pyrite.protocols.states import CLOSED, WAITING, State

if TYPE_CHECKING:
    from pyrite.broker.core import Broker

LONG_READ = TURN / 8
"""Seconds of handling one read after which the client's next read waits for a turn. Clients that send little
are read as soon as their bytes arrive."""


class Backlog:
    """Queue of work items, each done in short steps. A step may add another item."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: deque[Iterator[None]] = deque()

    def add(self, steps: Iterator[None]) -> None:
        """Append a work item."""
        self._pieces.append(steps)

    def step(self) -> bool:
        """Do one step. Return False when nothing is left."""
        pieces = self._pieces
        while pieces:
            for _ in pieces[0]:
                return True
            pieces.popleft()
        return False


class Receiver(Link):
    """Buffers what a client sent and pauses reading while the client has to wait."""

    __slots__ = ("backlog", "interrupted", "missing", "received", "state")

    def __init__(self, broker: Broker, transport: Transport) -> None:
        super().__init__(broker, transport)
        self.state: State = WAITING
        self.received: bytearray | None = None
        """Bytes that are not handled yet: an incomplete frame, or the rest of an interrupted read."""
        self.missing = 0
        """Minimum number of bytes that complete the frame in `received`."""
        self.backlog: Backlog | None = None
        """Unfinished work of the last frame, such as sending retained messages; None if there is none."""
        self.interrupted = False
        """True while no input is handled: the connection waits for a turn, the journal or its quota."""

    def was_interrupted(self) -> bool:
        """Return `interrupted`, after a call that may set it: mypy, and so mypyc, would assume it did not."""
        return self.interrupted

    def feed(self, data: bytes) -> None:
        """Handle bytes from the client. Never raises."""
        raise NotImplementedError

    def receive(self, data: bytes) -> None:
        """Handle one read from the client. After a long one, the next read waits for a turn."""
        clock = self.broker.clock
        began = clock()
        self.feed(data)
        if clock() - began > LONG_READ:
            self.end_turn()

    def end_turn(self) -> None:
        """Read no more from the client before its next turn."""
        if not self.interrupted and self.state is not CLOSED:
            self.hold()
            self.broker.turns.add(self)

    def receive_later(self, data: bytes) -> None:
        """Handle one read from the client in a later turn."""
        self.hold()
        self.broker.turns.add(self)
        self.feed(data)

    def interrupt(self, data: bytes, at: int) -> None:
        """Handle the rest of `data` in a later turn."""
        self.keep(data, at, 0)
        self.hold()
        self.broker.turns.add(self)

    def wait_for_room(self, data: bytes, at: int) -> None:
        """Handle the rest of `data` when the journal has room again."""
        self.keep(data, at, 0)
        self.hold()
        self.broker.turns.wait_for_journal(self)

    def wait_for_fan_outs(self, data: bytes, at: int) -> None:
        """Handle the rest of `data` when fewer deliveries are pending."""
        self.keep(data, at, 0)
        self.hold()
        self.broker.fan_outs.wait(self)

    def wait_for_budget(self, data: bytes, at: int) -> None:
        """Handle the rest of `data` when the user's rate quota allows it."""
        assert self.meter is not None
        self.keep(data, at, 0)
        self.hold()
        self.meter.wait(self)

    @property
    def is_throttled(self) -> bool:
        """True if silence proves nothing, because the rate quota may stop the broker from reading."""
        return self.interrupted and self.meter is not None

    def keep(self, data: bytes, at: int, missing: int) -> None:
        """Keep `data` from `at` on, until at least `missing` more bytes have arrived."""
        self.received = bytearray(data[at:])
        self.missing = missing

    def hold(self) -> None:
        """Handle no more input until `go_on`."""
        self.interrupted = True
        self.transport.pause_reading()

    def go_on(self) -> object:
        """Take a turn: handle more of the kept bytes. Return true if reading has resumed."""
        self.interrupted = False
        self.feed(b"")
        self.resume_reading()
        return not self.interrupted and self.state is not CLOSED

    def resume_reading(self) -> None:
        """Resume reading from the client, unless kept bytes still wait."""
        if not self.interrupted and self.state is not CLOSED:
            self.transport.resume_reading()

    def work_off(self, until: float | None = None) -> bool:
        """Work on the backlog until the time `until`, or for one turn. Return true if it is finished."""
        assert self.backlog is not None
        clock = self.broker.clock
        if until is None:
            until = clock() + TURN
        backlog = self.backlog
        while self.state is not CLOSED and backlog.step():
            if clock() > until:
                return False
        self.backlog = None
        return True

    def add_work(self, steps: Iterator[None]) -> None:
        """Do `steps` in turns, before any later frame of the client is handled."""
        if self.backlog is None:
            self.backlog = Backlog()
        self.backlog.add(steps)

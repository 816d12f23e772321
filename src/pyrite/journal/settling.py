"""Settling: routing and acknowledging the messages of committed groups, in order and in turns."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pyrite.broker.timers import TURN
from pyrite.journal.group import Group, Waiter

if TYPE_CHECKING:
    from pyrite.broker.core import Broker

logger = logging.getLogger(__name__)

_NO_FAULTS = Group()
"""The group of calls that wait for the state alone."""


class Settling:
    """The waiters of committed groups, in the order in which they are settled."""

    def __init__(self, broker: Broker, turn_ended: Callable[[], object]) -> None:
        self._broker = broker
        self._turn_ended = turn_ended
        self._waiting: deque[tuple[Group, Waiter]] = deque()
        self._has_turn = False
        """Whether another turn has been requested."""
        self._when_grown: list[Callable[[], object]] = []

    def add(self, group: Group, waiters: Iterable[Waiter]) -> None:
        """Settle the waiters of a group after all earlier ones."""
        self._waiting.extend([(group, waiter) for waiter in waiters])

    def add_calls(self, calls: Iterable[Callable[[], object]]) -> None:
        """Make calls after all earlier waiters."""
        self.add(_NO_FAULTS, [Waiter(None, None, call) for call in calls])

    def when_grown(self, call: Callable[[], object]) -> None:
        """Call once, soon after the next message can be read from a stream."""
        self._when_grown.append(call)

    def go_on(self) -> None:
        """Continue in a turn that was requested."""
        self._has_turn = False
        self.work()

    def work(self) -> None:
        """Settle waiters for one turn."""
        waiting, broker = self._waiting, self._broker
        until = broker.clock() + TURN
        count = 0
        has_grown = False
        while waiting:
            group, waiter = waiting.popleft()
            has_grown = has_grown or waiter.batch is not None
            try:
                self._settle(group, waiter)
            except Exception:  # must not keep the other waiters from being settled
                logger.exception("internal error while settling a group")
            count += 1
            if (count % 8 == 0 or broker.fan_outs.queue) and broker.clock() > until:
                self._request_turn()
                break
        else:  # large fan-outs continue when everything is acknowledged
            broker.fan_outs.work(until)
        self._turn_ended()
        if has_grown and self._when_grown:
            calls, self._when_grown = self._when_grown, []
            for call in calls:
                call()

    def _request_turn(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self._broker.turns.add(self)

    def _settle(self, group: Group, waiter: Waiter) -> None:
        batch, done = waiter.batch, waiter.done
        if batch is None:
            assert waiter.call is not None
            waiter.call()
            return
        stream = batch.stream
        assert stream is not None
        fault = group.faults.get(stream)
        matched = False
        if fault is None:
            stream.routed = batch.offset
            try:
                matched = self._broker.publishing.deliver_committed(batch)
            except Exception:  # it is in the log: refusing it would make the publisher send it again
                self._broker.publishing.log_error(batch)
                matched = True
        stream.routed = batch.offset + batch.count
        if done is not None:
            done(matched, fault)

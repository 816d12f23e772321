"""Connections in the broker's log: one line for each that comes, is turned away, or ends.

Never for a message: logging costs the hot path nothing. In a rush of clients, only so many lines are written
in a second; then one line says how many were left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyrite.broker.access import CONNECTION_RATE_EXCEEDED, WHO_IT_IS, Credentials

if TYPE_CHECKING:
    from pyrite.broker.core import Broker

CONNECTIONS = logging.getLogger("pyrite.connections")
ACCESS = logging.getLogger("pyrite.access")
"""For clients that were turned away for who they are."""


class Events:
    """Writes a line for an event, or counts it as left out."""

    __slots__ = ("_clock", "_left_out", "_second", "_told", "most")

    def __init__(self, most: int = 100, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        """Lines that may be written in one second."""
        self._clock = clock
        self._second = 0
        self._told = 0
        self._left_out = 0

    def tell(self, event: str, logger: logging.Logger = CONNECTIONS, **fields: object) -> None:
        """Write a line for an event with its fields, if that is wanted, and not too many were written."""
        if not logger.isEnabledFor(logging.INFO):
            return
        self.settle()
        if self._told >= self.most:
            self._left_out += 1
            return
        self._told += 1
        logger.info(event, extra={"fields": fields})

    def settle(self) -> None:
        """Say how many lines were left out, once the second is over in which they were."""
        second = int(self._clock())
        if second == self._second:
            return
        left_out, self._left_out = self._left_out, 0
        self._second, self._told = second, 0
        if left_out:
            CONNECTIONS.warning("left out", extra={"fields": {"lines": left_out}})


events = Events()
"""The one of this process, as loggers are."""


def tell_refused(broker: Broker, who: Credentials, code: int, reason: str) -> None:
    """Count someone who was turned away, over whatever protocol, and write a line for it."""
    broker.figures.connections_refused += 1
    events.tell(
        "refused",
        ACCESS if code in (*WHO_IT_IS, CONNECTION_RATE_EXCEEDED) else CONNECTIONS,
        client=who.client_id or None,
        user=who.username,
        address=who.address,
        reason=reason,
    )

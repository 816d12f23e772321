"""Log lines about connections: accepted, refused, ended.

Messages are never logged. The number of lines per second is bounded; one more line then reports how many
lines were left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyrite.broker.access import CONNECTION_RATE_EXCEEDED, IDENTITY_REFUSALS, Credentials

if TYPE_CHECKING:
    from pyrite.broker.core import Broker

CONNECTIONS = logging.getLogger("pyrite.connections")
ACCESS = logging.getLogger("pyrite.access")
"""Logger for clients refused because of their identity or their number of attempts."""


class Events:
    """Logs events, a bounded number of them per second."""

    __slots__ = ("_clock", "_left_out", "_second", "_told", "most")

    def __init__(self, most: int = 100, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        """Lines per second."""
        self._clock = clock
        self._second = 0
        self._told = 0
        self._left_out = 0

    def tell(self, event: str, logger: logging.Logger = CONNECTIONS, **fields: object) -> None:
        """Log an event with its fields, unless the limit for this second is reached."""
        if not logger.isEnabledFor(logging.INFO):
            return
        self.settle()
        if self._told >= self.most:
            self._left_out += 1
            return
        self._told += 1
        logger.info(event, extra={"fields": fields})

    def settle(self) -> None:
        """Log how many lines were left out, once the second in question is over."""
        second = int(self._clock())
        if second == self._second:
            return
        left_out, self._left_out = self._left_out, 0
        self._second, self._told = second, 0
        if left_out:
            CONNECTIONS.warning("left out", extra={"fields": {"lines": left_out}})


events = Events()
"""Shared by the whole process, like its loggers."""


_ACCESS_CODES = (*IDENTITY_REFUSALS, CONNECTION_RATE_EXCEEDED)


def tell_refused(broker: Broker, who: Credentials, code: int, reason: str) -> None:
    """Count and log a refused client, of any protocol."""
    broker.figures.connections_refused += 1
    events.tell(
        "refused",
        ACCESS if code in _ACCESS_CODES else CONNECTIONS,
        client=who.client_id or None,
        user=who.username,
        address=who.address,
        reason=reason,
    )

"""Ping and Pong: the server checks periodically that each TCP client is still there."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyrite.protocols.line.frames import Line, line

if TYPE_CHECKING:
    from pyrite.protocols.line.connection import LineConnection

logger = logging.getLogger(__name__)


def ping(connection: LineConnection, asked: Line) -> None:
    """`Ping [TOKEN]`."""
    connection.say(line("Pong", *asked.words[:1]))


def pong(connection: LineConnection, asked: Line) -> None:
    """`Pong`: do nothing, because every frame resets the count of unanswered Pings."""


def next_round(connection: LineConnection) -> None:
    """Send a Ping; close the connection if too many Pings are unanswered."""
    options, missed = connection.options, connection.unanswered_pings
    counts = not connection.is_throttled  # nothing is read from a throttled client
    if missed and counts:
        most = options.missed_rounds
        if options.watch is not None:
            connection.watched("Silent")
        elif most:
            logger.warning("%s has not answered Ping (%d of %d)", connection.peer, missed, most)
        elif missed == 1:
            logger.warning("%s has not answered Ping", connection.peer)
        if most and missed >= most:
            connection.fail("silent", "no Pong received")
            return
    if counts or not missed:
        connection.unanswered_pings += 1
    connection.say(line("Ping"))
    connection.broker.timers.set(connection, connection.broker.now + options.ping_interval)

"""What cannot be written at present, and why: of each stream, and of the state.

The disk may take what one of them writes and not what another does. So each has a fault of its own, which
only a write of its own ends.
"""

from __future__ import annotations

import errno
import logging
import sqlite3

from pyrite.broker.journal import Fault, Stream

logger = logging.getLogger(__name__)

STATE = None
"""Stands for the state where others are streams."""


class Faults:
    """The faults there are now."""

    def __init__(self) -> None:
        self._by_writer: dict[Stream | None, Fault] = {}

    def __bool__(self) -> bool:
        return bool(self._by_writer)

    def __contains__(self, writer: Stream | None) -> bool:
        return writer in self._by_writer

    def note(self, writer: Stream | None, fault: Fault | None) -> bool:
        """Note how a write went, and say so if that is news; tell whether it is."""
        before = self._by_writer.get(writer)
        if fault is None:
            if before is not None:
                del self._by_writer[writer]
                logger.warning("%s is written again (before: %s)", what(writer), before.text)
            return before is not None
        self._by_writer[writer] = fault
        if before is None:
            if writer is None:
                then = "sessions and subscriptions that are to last wait"
            else:
                then = "messages with QoS 1 and 2 are refused"
            logger.error("%s; %s until it works again", fault.text, then)
        return fault != before

    def all(self) -> Fault | None:
        """Return them as one, if there are any."""
        faults = self._by_writer.values()
        if not faults:
            return None
        return Fault(all(one.full for one in faults), "; ".join(one.text for one in faults))


def what(writer: Stream | None) -> str:
    """Say what is written, or is not."""
    return "the state of sessions" if writer is None else f"stream {writer.name}"


def fault_of(error: Exception, writer: Stream | None) -> Fault:
    """Say what an error means for who waits; one that should not be is logged with where it came from."""
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return Fault(full, f"{what(writer)} cannot be written: {error.strerror or error}")
    if isinstance(error, sqlite3.Error):
        full = getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"
        return Fault(full, f"{what(writer)} cannot be written: {error}")
    logger.error("%s: internal error", what(writer), exc_info=error)
    return Fault(False, f"{what(writer)} cannot be written: internal error: {error!r}")

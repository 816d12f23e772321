"""Which streams, and whether the state, cannot be written at present, and why.

One file may be writable when another is not. So each has its own fault, which only a successful write to the
same subject ends.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from pyrite.broker.journal import Fault, Stream
from pyrite.storage.segment import Damage

logger = logging.getLogger(__name__)

STATE = None
"""The state, as a subject of faults."""


class Missing(NamedTuple):
    """The sealed segments of a stream, as a subject of faults: someone may remove them."""

    stream: Stream


Subject = Stream | Missing | None
"""A stream (its active segment), its sealed segments, or the state."""


class Faults:
    """The current faults."""

    def __init__(self) -> None:
        self._by_writer: dict[Subject, Fault] = {}

    def __bool__(self) -> bool:
        return bool(self._by_writer)

    def __contains__(self, writer: Subject) -> bool:
        return writer in self._by_writer

    def note(self, writer: Subject, fault: Fault | None) -> bool:
        """Record the outcome of a write, and log it if it has changed; return whether it has."""
        before = self._by_writer.get(writer)
        if fault is None:
            if before is not None:
                del self._by_writer[writer]
                again = "has all its segments" if isinstance(writer, Missing) else "is written"
                logger.warning("%s %s again (before: %s)", what(writer), again, before.text)
            return before is not None
        self._by_writer[writer] = fault
        if before is None:
            if writer is None:
                then = "sessions and subscriptions that are to last wait"
            elif isinstance(writer, Missing):
                then = "they cannot be read"
            else:
                then = "messages with QoS 1 and 2 are refused"
            logger.error("%s; %s until it works again", fault.text, then)
        return fault != before

    def all(self) -> Fault | None:
        """Return all faults as one; None if there are none."""
        faults = self._by_writer.values()
        if not faults:
            return None
        return Fault(all(one.full for one in faults), "; ".join(one.text for one in faults))


def what(writer: Subject) -> str:
    """Describe a subject."""
    if writer is None:
        return "the state of sessions"
    return f"stream {writer.stream.name if isinstance(writer, Missing) else writer.name}"


def missing_fault(stream: Stream, missing: Sequence[Damage]) -> Fault | None:
    """Return the fault for missing segments; None if none is missing."""
    if not missing:
        return None
    first = missing[0]
    more = f", and {len(missing) - 1} other files" if len(missing) > 1 else ""
    where = f"{first.file} (messages {first.first} to {first.last}){more}"
    return Fault(False, f"stream {stream.name}: someone has removed {where}")


def fault_of(error: Exception, writer: Subject) -> Fault:
    """Return the fault for an error; an unexpected error is logged with its traceback."""
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return Fault(full, f"{what(writer)} cannot be written: {error.strerror or error}")
    if isinstance(error, sqlite3.Error):
        full = getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"
        return Fault(full, f"{what(writer)} cannot be written: {error}")
    logger.error("%s: internal error", what(writer), exc_info=error)
    return Fault(False, f"{what(writer)} cannot be written: internal error: {error!r}")

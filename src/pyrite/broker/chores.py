"""Chores: long work on a session's queue and in-flight messages, done in turns. Nothing is sent meanwhile."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyrite.broker.access import UNSPECIFIED
from pyrite.broker.timers import TURN

if TYPE_CHECKING:
    from pyrite.broker.session import Session

logger = logging.getLogger(__name__)

FIRST_TURN = TURN / 4
"""Seconds of work that are done at once: several chores may begin in one turn of a client."""


class Chores:
    """The chores of a session that has some, in order."""

    __slots__ = ("_chores", "_resend", "_session", "then")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._chores: deque[Iterator[None]] = deque()
        self.then: Callable[[], object] | None = None
        """Called after the last chore, if the connection is still the same."""
        self._resend = session.resend
        """The session's `resend`, which is empty meanwhile: that stops all sending."""
        session.resend = deque()

    def add(self, chore: Iterator[None]) -> None:
        self._chores.append(chore)

    def detached(self) -> None:
        """Forget what was to be sent to the connection that has ended."""
        self.then = None
        self._resend = None

    def start(self) -> None:
        """Do the first part of the work at once."""
        self._work(self._session.broker.clock() + FIRST_TURN)

    def _work(self, until: float) -> None:
        session, chores = self._session, self._chores
        broker = session.broker
        try:
            while chores:
                chore = chores.popleft()
                for _ in chore:
                    if broker.clock() > until:
                        chores.appendleft(chore)
                        return
        except BaseException:
            self.then = None
            raise
        finally:
            if chores:
                broker.turns.soon(self._go_on)
            else:
                session.chores = None
                session.resend = self._resend
        if self.then is not None:
            self.then()
        elif session.link is not None:
            session.send_waiting()

    def _go_on(self) -> None:
        try:
            self._work(self._session.broker.clock() + TURN)
        except Exception:  # raised by an access plug-in; nothing is sent unchecked, nor forgotten
            name = self._session.client_id[:200]
            logger.exception("internal error: what waits for %r was not worked on", name)
            if self._session.link is not None:
                self._session.link.ended(UNSPECIFIED)

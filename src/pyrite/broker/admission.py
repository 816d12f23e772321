"""Decisions on log-ins: limits on failures, and fair turns for slow checks.

One log-in is checked at a time. Networks take turns, and so do the names on each network. The number of
waiting log-ins is bounded; further ones are refused and may be repeated, as are all log-ins while a plug-in
hangs.

The log-ins of a locked network are checked too, after those of other networks. Their result is refused,
unless the name has logged in from that network before. So known and unknown names take the same path and
time.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from traceback import format_exception
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pyrite.broker.access import (
    CONNECTION_RATE_EXCEEDED,
    IDENTITY_REFUSALS,
    SERVER_BUSY,
    UNSPECIFIED,
    Accept,
    Access,
    Challenge,
    Credentials,
    Refuse,
)
from pyrite.broker.attempts import Attempts, network_of
from pyrite.broker.timers import NO_SLOT
from pyrite.process.fair import Asker, FairQueue

if TYPE_CHECKING:
    from pyrite.broker.core import Broker

logger = logging.getLogger(__name__)

MAX_WAITING = 4_096
"""Log-ins that may wait for a check, which takes about 50 ms."""
MAX_LOCKED = 1_024
"""Waiting log-ins of locked networks."""
MAX_OF_ONE = 256
"""Waiting log-ins of one network."""
CHECK_TIMEOUT = 10.0
"""Seconds after which a check no longer blocks other log-ins."""
FAILURE = 0x80
"""The lowest reason code of a failure."""

Offload = Callable[[Callable[[], Any], Callable[[Any], object]], object]
"""Runs a slow job in another thread, and its callback in this one."""
Then = Callable[[Accept | Refuse], object]
Verdict = TypeVar("Verdict", bound=Accept | Refuse | Challenge)


class _LogIn(NamedTuple):
    credentials: Credentials
    then: Then


class _Lane:
    """Waiting log-ins. Networks take turns, and so do the names on each network."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: FairQueue[_LogIn] = FairQueue()
        self._of: Counter[str] = Counter()
        """Number of waiting log-ins of each network."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, log_in: _LogIn) -> bool:
        """Add a log-in; return False if the lane is full."""
        network = network_of(log_in.credentials.address)
        if len(self._waiting) >= self._most or self._of[network] >= MAX_OF_ONE:
            return False
        self._of[network] += 1
        self._waiting.put(Asker(network, log_in.credentials.username or ""), log_in)
        return True

    def get(self) -> _LogIn:
        """Remove and return the next log-in."""
        log_in = self._waiting.get()
        network = network_of(log_in.credentials.address)
        self._of[network] -= 1
        if not self._of[network]:
            del self._of[network]
        return log_in


class Admission:
    """Asks the access plug-in to decide on log-ins, in fair order."""

    def __init__(self, broker: Broker, offload: Offload) -> None:
        self._broker = broker
        self._offload = offload
        self._attempts = Attempts(lambda: broker.now)
        self._first = _Lane(MAX_WAITING)
        self._locked = _Lane(MAX_LOCKED)
        """Log-ins of locked networks, checked when no other log-in waits."""
        self._busy = False
        self.version = 0
        """Changes whenever users change."""
        self.slot = NO_SLOT
        self._checked: _LogIn | None = None
        """The log-in being checked, until its client is answered."""

    def changed(self) -> None:
        """Repeat the check in progress, because users have changed."""
        self.version += 1

    def decide(self, credentials: Credentials, then: Then) -> None:
        """Decide on a client's log-in; call `then` with the verdict, now or later."""
        refusal = self.too_many(credentials) if self._is_guess(credentials) else None
        if refusal is not None:
            then(refusal)
        elif not self._broker.access.takes_time(credentials):
            access = self._broker.access
            verdict = verdict_of(partial(access.authenticate, credentials), credentials.password)
            if self._is_guess(credentials):
                verdict = self.judged(credentials, verdict)
            then(verdict)
        else:
            self._enqueue(_LogIn(credentials, then))

    def too_many(self, credentials: Credentials) -> Refuse | None:
        """Return a refusal without a check if this name failed too often from this network, else None."""
        if not self._broker.access.limits_log_ins:
            return None
        attempts, address, name = self._attempts, credentials.address, credentials.username
        return self._come_again(credentials) if attempts.own_lock(address, name) else None

    def _come_again(self, credentials: Credentials) -> Refuse:
        wait = self._attempts.longest_lock(credentials.address, credentials.username)
        reason = f"too many failed log-ins; try again in {math.ceil(wait)} s"
        return Refuse(CONNECTION_RATE_EXCEEDED, reason, wait)

    def judged(self, credentials: Credentials, verdict: Verdict) -> Verdict | Refuse:
        """Count the outcome of a log-in, and return the verdict for its client.

        During a lock, every failure gets the same answer, and so does a right password under a name that
        has not logged in from this network before.
        """
        attempts, address, name = self._attempts, credentials.address, credentials.username
        failed = isinstance(verdict, Refuse) and verdict.code in IDENTITY_REFUSALS
        if not self._broker.access.limits_log_ins or not (failed or isinstance(verdict, Accept)):
            return verdict
        if not failed and not attempts.wait(address, name):
            attempts.succeeded(address, name)
            return verdict
        told = self._come_again(credentials) if attempts.longest_lock(address, name) else verdict
        attempts.failed(address, name)
        return told

    def _is_guess(self, credentials: Credentials) -> bool:
        """Return whether the client may be guessing a name or password; False if everyone is let in."""
        if type(self._broker.access).authenticate is Access.authenticate:
            return False
        return credentials.password is not None or (
            credentials.username is not None and credentials.certificate is None
        )

    @property
    def _stuck(self) -> bool:
        return self._busy and self._checked is None

    def _enqueue(self, log_in: _LogIn) -> None:
        if self._stuck:
            log_in.then(Refuse(SERVER_BUSY, "log-ins cannot be checked now; try again"))
            return
        if len(self._first) + len(self._locked) >= MAX_WAITING or not self._lane(log_in).put(log_in):
            log_in.then(Refuse(SERVER_BUSY, "too many log-ins wait to be checked; try again"))
        elif not self._busy:
            self._next()

    def _lane(self, log_in: _LogIn) -> _Lane:
        is_limited = self._broker.access.limits_log_ins and self._is_guess(log_in.credentials)
        locked = is_limited and self._attempts.network_lock(log_in.credentials.address)
        return self._locked if locked else self._first

    def _next(self) -> None:
        """Check the next log-in."""
        while (self._first or self._locked) and not self._busy:
            lane = self._first or self._locked
            log_in = lane.get()
            # Other log-ins may have failed while this one waited.
            refusal = self.too_many(log_in.credentials) if self._is_guess(log_in.credentials) else None
            if refusal is not None:
                self._tell(log_in, refusal)
            elif lane is self._locked or self._lane(log_in) is self._first:
                self._check(log_in)
            elif not self._locked.put(log_in):
                self._tell(log_in, self._come_again(log_in.credentials))

    def _check(self, log_in: _LogIn) -> None:
        access, version, credentials = self._broker.access, self.version, log_in.credentials
        self._busy = True
        self._checked = log_in
        self._broker.timers.set(self, self._broker.now + CHECK_TIMEOUT)

        def checked(verdict: Accept | Refuse) -> None:
            self._busy = False
            self._broker.timers.cancel(self)
            if self._checked is None:  # the check took too long, and the client was refused
                logger.warning("the access plug-in answers again")
            elif version != self.version:
                self._enqueue(log_in)
            else:
                if self._is_guess(credentials):
                    verdict = self.judged(credentials, verdict)
                self._tell(log_in, verdict)
            self._next()

        authenticate = partial(access.authenticate, credentials)
        self._offload(partial(verdict_of, authenticate, credentials.password), checked)

    def due(self) -> None:
        """Refuse all waiting log-ins, because a check takes too long."""
        logger.error(
            "the access plug-in has not answered for %d s: log-ins are refused until it does",
            CHECK_TIMEOUT,
        )
        waiting = [] if self._checked is None else [self._checked]
        self._checked = None
        for lane in (self._first, self._locked):
            waiting += [lane.get() for _ in range(len(lane))]
        for log_in in waiting:
            self._tell(log_in, Refuse(SERVER_BUSY, "log-ins cannot be checked now; try again"))

    def _tell(self, log_in: _LogIn, verdict: Accept | Refuse) -> None:
        try:
            log_in.then(verdict)
        except Exception:  # the other log-ins must still be answered
            logger.exception("internal error")


def verdict_of(
    decide: Callable[[], Verdict], secret: bytes | None, kinds: tuple[type, ...] = (Accept, Refuse)
) -> Verdict | Refuse:
    """Return a plug-in's decision; if it raises or returns nonsense, refuse the client and log the reason.

    An error whose text contains the client's `secret` is logged without its text.
    """
    try:
        verdict = decide()
    except BaseException as error:  # of any kind: it must not end the thread that checks all log-ins
        if secret and _is_told(secret, "".join(format_exception(error))):
            logger.error(
                "internal error in the access plug-in: %s (text withheld: it contains the client's password)",
                type(error).__name__,
            )
        else:
            logger.exception("internal error in the access plug-in")
        return Refuse(UNSPECIFIED, "internal error")
    if isinstance(verdict, kinds) and not (isinstance(verdict, Refuse) and verdict.code < FAILURE):
        return verdict
    logger.error(
        "the access plug-in returned %s: expected %s, or a Refuse with a code of at least 0x80",
        f"the code {verdict.code:#04x}" if isinstance(verdict, Refuse) else type(verdict).__name__,
        ", ".join(kind.__name__ for kind in kinds),
    )
    return Refuse(UNSPECIFIED, "internal error")


def _is_told(secret: bytes, text: str) -> bool:
    """Return whether a text contains a secret, decoded or as a Python literal."""
    return secret.decode("utf-8", "replace") in text or repr(secret)[2:-1] in text

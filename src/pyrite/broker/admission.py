"""Deciding on log-ins: limits on failures, and turns where a check takes time.

One log-in is checked at a time. Networks take turns, and so do the names on each network. The number of
waiting log-ins is bounded; further ones are refused and may be repeated. So are all of them while a plug-in
hangs.

While a network is locked, its log-ins are checked all the same, after those of other networks, and refused
whatever the result, unless their name has logged in from there before. Known and unknown names thus take the
same path, in the same time.
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
    SERVER_BUSY,
    UNSPECIFIED,
    WHO_IT_IS,
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
"""Log-ins that may wait to be checked; a check takes some 50 ms."""
MAX_LOCKED = 1_024
"""Those of locked networks among them."""
MAX_OF_ONE = 256
"""Those of one network."""
PATIENCE = 10.0
"""Seconds that a check may take before the others no longer wait for it."""
FAILURE = 0x80
"""From here on, reason codes tell of failures."""

Aside = Callable[[Callable[[], Any], Callable[[Any], object]], object]
"""Does what takes time in another thread, and tells the result in this one."""
Then = Callable[[Accept | Refuse], object]
Verdict = TypeVar("Verdict", bound=Accept | Refuse | Challenge)


class _LogIn(NamedTuple):
    credentials: Credentials
    then: Then


class _Lane:
    """Waiting log-ins: networks take turns, and so do the names on each network."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: FairQueue[_LogIn] = FairQueue()
        self._of: Counter[str] = Counter()
        """How many wait of each network."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, log_in: _LogIn) -> bool:
        """Add a log-in; return False if there is no room for it."""
        network = network_of(log_in.credentials.address)
        if len(self._waiting) >= self._most or self._of[network] >= MAX_OF_ONE:
            return False
        self._of[network] += 1
        self._waiting.put(Asker(network, log_in.credentials.username or ""), log_in)
        return True

    def get(self) -> _LogIn:
        """Take the log-in whose turn it is."""
        log_in = self._waiting.get()
        network = network_of(log_in.credentials.address)
        self._of[network] -= 1
        if not self._of[network]:
            del self._of[network]
        return log_in


class Admission:
    """Has the access plug-in decide on log-ins."""

    def __init__(self, broker: Broker, aside: Aside) -> None:
        self._broker = broker
        self._aside = aside
        self._attempts = Attempts(lambda: broker.now)
        self._first = _Lane(MAX_WAITING)
        self._locked = _Lane(MAX_LOCKED)
        """Log-ins of locked networks: checked when no others wait."""
        self._busy = False
        self.version = 0
        """Changes with the users that are let in."""
        self.slot = NO_SLOT
        self._checked: _LogIn | None = None
        """The log-in that is being checked, until its client is answered."""

    def changed(self) -> None:
        """Decide again on log-ins that are being checked: users have changed."""
        self.version += 1

    def decide(self, credentials: Credentials, then: Then) -> None:
        """Decide whether a client may come in; `then` is called with the verdict, at once or later."""
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
        """Return the refusal of a log-in that is not checked: its name failed too often from this network."""
        if not self._broker.access.limits_log_ins:
            return None
        attempts, address, name = self._attempts, credentials.address, credentials.username
        return self._come_again(credentials) if attempts.own_lock(address, name) else None

    def _come_again(self, credentials: Credentials) -> Refuse:
        wait = self._attempts.longest_lock(credentials.address, credentials.username)
        reason = f"too many failed log-ins; try again in {math.ceil(wait)} s"
        return Refuse(CONNECTION_RATE_EXCEEDED, reason, wait)

    def judged(self, credentials: Credentials, verdict: Verdict) -> Verdict | Refuse:
        """Count the outcome of a log-in, and return the verdict that its client is told.

        While a lock is in force, all failures get the same answer, and so do right passwords under names that
        have not logged in from this network before.
        """
        attempts, address, name = self._attempts, credentials.address, credentials.username
        failed = isinstance(verdict, Refuse) and verdict.code in WHO_IT_IS
        if not self._broker.access.limits_log_ins or not (failed or isinstance(verdict, Accept)):
            return verdict
        if not failed and not attempts.wait(address, name):
            attempts.succeeded(address, name)
            return verdict
        told = self._come_again(credentials) if attempts.longest_lock(address, name) else verdict
        attempts.failed(address, name)
        return told

    def _is_guess(self, credentials: Credentials) -> bool:
        """Tell whether a client may have guessed what it says of itself: not where everyone is let in."""
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
        """Have the next log-in checked."""
        while (self._first or self._locked) and not self._busy:
            lane = self._first or self._locked
            log_in = lane.get()
            # Others may have failed since it came.
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
        self._broker.timers.set(self, self._broker.now + PATIENCE)

        def checked(verdict: Accept | Refuse) -> None:
            self._busy = False
            self._broker.timers.cancel(self)
            if self._checked is None:  # it took too long, and its client was told
                logger.warning("log-ins are checked again")
            elif version != self.version:
                self._enqueue(log_in)
            else:
                if self._is_guess(credentials):
                    verdict = self.judged(credentials, verdict)
                self._tell(log_in, verdict)
            self._next()

        authenticate = partial(access.authenticate, credentials)
        self._aside(partial(verdict_of, authenticate, credentials.password), checked)

    def due(self) -> None:
        """Have no one wait any longer for a check that does not come to an end."""
        logger.error(
            "the access plug-in has been checking a log-in for %d s: who comes now is told to come again",
            PATIENCE,
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
        except Exception:  # it must not end what others wait for
            logger.exception("internal error")


def verdict_of(
    decide: Callable[[], Verdict], secret: bytes | None, kinds: tuple[type, ...] = (Accept, Refuse)
) -> Verdict | Refuse:
    """Return what a plug-in decides. It may do anything: then the client is refused, and the log says why.

    But not if the words of an error have the client's `secret` in them.
    """
    try:
        verdict = decide()
    except BaseException as error:  # also one that would end the thread, for which all others wait
        if secret and _is_told(secret, "".join(format_exception(error))):
            logger.error(
                "internal error in the access plug-in: %s, whose words are those of the client's password",
                type(error).__name__,
            )
        else:
            logger.exception("internal error in the access plug-in")
        return Refuse(UNSPECIFIED, "internal error")
    if isinstance(verdict, kinds) and not (isinstance(verdict, Refuse) and verdict.code < FAILURE):
        return verdict
    logger.error(
        "the access plug-in answered with %s: expected one of %s, a Refuse with a code from 0x80 on",
        f"the code {verdict.code:#04x}" if isinstance(verdict, Refuse) else type(verdict).__name__,
        ", ".join(kind.__name__ for kind in kinds),
    )
    return Refuse(UNSPECIFIED, "internal error")


def _is_told(secret: bytes, text: str) -> bool:
    """Tell whether a text has a secret in it, as text or as Python writes bytes."""
    return secret.decode("utf-8", "replace") in text or repr(secret)[2:-1] in text

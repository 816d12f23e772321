"""Who is let in: the limits in front of every kind of access, and turns where checking takes time.

One log-in is checked at a time, and networks take turns: someone who sends many waits for himself. What
waits is bounded; who comes then is told to come again. So is everyone while a plug-in does not come to an end
with the one that it checks.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict, deque
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

if TYPE_CHECKING:
    from pyrite.broker.core import Broker

logger = logging.getLogger(__name__)

MAX_WAITING = 4_096
"""Log-ins that may wait to be checked; one takes some 50 ms."""
MAX_OF_ONE = 256
"""Log-ins of one network that may."""
PATIENCE = 10.0
"""Seconds that checking one may take, before no one else waits for it."""
FAILURE = 0x80
"""From here on, reason codes tell of failures."""

Aside = Callable[[Callable[[], Any], Callable[[Any], object]], object]
"""Does what takes time in another thread, and tells the result in this one."""
Then = Callable[[Accept | Refuse], object]
Verdict = TypeVar("Verdict", bound=Accept | Refuse | Challenge)


class _LogIn(NamedTuple):
    credentials: Credentials
    then: Then


class Admission:
    """Has the access plug-in decide on clients that want to come in."""

    def __init__(self, broker: Broker, aside: Aside) -> None:
        self._broker = broker
        self._aside = aside
        self._attempts = Attempts(lambda: broker.now)
        self._waiting: OrderedDict[str, deque[_LogIn]] = OrderedDict()
        """By network; the first has the next turn."""
        self._count = 0
        self._busy = False
        self.version = 0
        """Changes with who may come in."""
        self.slot = NO_SLOT
        self._checked: _LogIn | None = None
        """The one that is being checked, until someone is told of it."""

    def changed(self) -> None:
        """Have those decided on again who are just being checked: who may come in has changed."""
        self.version += 1

    def decide(self, credentials: Credentials, then: Then) -> None:
        """Have it decided whether a client may come in; `then` is told at once, or later."""
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
        """Return why someone is turned away unheard, if so."""
        if not self._broker.access.limits_log_ins:
            return None
        attempts, address, name = self._attempts, credentials.address, credentials.username
        wait = attempts.wait(address, name)
        return self._come_again(max(wait, attempts.wait_of_unknown(address, name))) if wait else None

    @staticmethod
    def _come_again(wait: float) -> Refuse:
        reason = f"too many failed log-ins; try again in {math.ceil(wait)} s"
        return Refuse(CONNECTION_RATE_EXCEEDED, reason, wait)

    def judged(self, credentials: Credentials, verdict: Verdict) -> Verdict | Refuse:
        """Count what became of a log-in, and return what the client is told.

        While log-ins under unknown names are turned away unheard, one that fails is told the same as those:
        else the answer would tell that its name is known.
        """
        limits = self._broker.access.limits_log_ins
        wait = self._attempts.wait_of_unknown(credentials.address, credentials.username) if limits else 0.0
        self._note(credentials, verdict)
        if wait and isinstance(verdict, Refuse) and verdict.code in WHO_IT_IS:
            return self._come_again(wait)
        return verdict

    def _note(self, credentials: Credentials, verdict: Accept | Refuse | Challenge) -> None:
        if isinstance(verdict, Accept):
            self._attempts.succeeded(credentials.address, credentials.username)
        elif isinstance(verdict, Refuse) and verdict.code in WHO_IT_IS:
            self._attempts.failed(credentials.address, credentials.username)

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
        network = network_of(log_in.credentials.address)
        waiting = self._waiting.get(network, ())
        if self._count >= MAX_WAITING or len(waiting) >= MAX_OF_ONE:
            log_in.then(Refuse(SERVER_BUSY, "too many log-ins wait to be checked; try again"))
            return
        self._waiting.setdefault(network, deque()).append(log_in)
        self._count += 1
        if not self._busy:
            self._next()

    def _next(self) -> None:
        """Have the next log-in checked, of the network whose turn it is."""
        while self._waiting and not self._busy:
            network, waiting = self._waiting.popitem(last=False)
            log_in = waiting.popleft()
            self._count -= 1
            if waiting:
                self._waiting[network] = waiting
            # Those before it may have failed since it came.
            refusal = self.too_many(log_in.credentials) if self._is_guess(log_in.credentials) else None
            if refusal is not None:
                self._tell(log_in, refusal)
            else:
                self._check(log_in)

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
        waiting = [one for several in self._waiting.values() for one in several]
        if self._checked is not None:
            waiting.insert(0, self._checked)
        self._checked = None
        self._waiting.clear()
        self._count = 0
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

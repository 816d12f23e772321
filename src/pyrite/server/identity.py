"""Log-ins over HTTP and Flight: every request carries one, and few of them are checked."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

from pyrite.broker.access import Accept, Credentials, Refuse
from pyrite.broker.core import Broker
from pyrite.protocols.events import tell_refused

REMEMBERED = 10.0
"""Seconds for which an accepted log-in is not checked again: checking passwords is slow on purpose."""
MAX_REMEMBERED = 1_000

Then = Callable[[Accept | Refuse], None]


class Identity:
    """Decides who may log in, with the access plug-in, and remembers it for some seconds."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._secret = secrets.token_bytes(32)
        self._known: dict[bytes, tuple[float, Accept]] = {}
        """Accepted log-ins, and until when, by a keyed hash of what was given and of the address."""
        self._waiting: dict[bytes, list[Then]] = {}
        """Requests with the same log-in as one that is being checked."""

    def forget(self) -> None:
        """Check every log-in again: users may have changed."""
        self._known.clear()

    def admit(self, given: Credentials, then: Then) -> None:
        """Decide on a log-in; `then` is told the verdict, at once or later."""
        key = self._key(given)
        until, accept = self._known.get(key, (0.0, None))
        if accept is not None and until > self._broker.now:
            then(accept)
        elif key in self._waiting:
            self._waiting[key].append(then)
        else:
            self._waiting[key] = [then]
            try:
                self._broker.admission.decide(given, lambda verdict: self._decided(key, given, verdict))
            except BaseException:  # a plug-in may do anything
                self._waiting.pop(key, None)
                raise

    def _decided(self, key: bytes, given: Credentials, verdict: Accept | Refuse) -> None:
        if isinstance(verdict, Accept):
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            seconds = REMEMBERED if verdict.seconds is None else min(REMEMBERED, verdict.seconds)
            self._known[key] = (self._broker.now + seconds, verdict)
        elif not given.silent:  # a browser's first request is without a name, each time
            tell_refused(self._broker, given, verdict.code, verdict.reason or "not authorized")
        for then in self._waiting.pop(key, ()):
            then(verdict)

    def _key(self, given: Credentials) -> bytes:
        digest = hashlib.blake2b(key=self._secret)
        for part in (given.username, given.password, given.certificate, given.address):
            data = part.encode() if isinstance(part, str) else part
            digest.update(b"-" if data is None else b"%d:%s" % (len(data), data))
        return digest.digest()

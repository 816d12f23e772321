"""Who asks over HTTP or Flight: every request says it again, and passwords are not checked each time."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

from pyrite.broker.access import Accept, Credentials, Refuse
from pyrite.broker.core import Broker
from pyrite.protocols.events import tell_refused

KNOWN = 10.0
"""Seconds for which someone who was let in is not asked again: checking a password takes time, on purpose."""
MAX_KNOWN = 1_000

Then = Callable[[Accept | Refuse], None]


class Identity:
    """Lets those in who the access plug-in lets in."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._secret = secrets.token_bytes(32)
        self._known: dict[bytes, tuple[float, Accept]] = {}
        """By what was given, and the address, until when someone is known. No password is kept."""
        self._waiting: dict[bytes, list[Then]] = {}
        """Those who gave the same, while it is being checked."""

    def forget(self) -> None:
        """Have everyone checked again: users may have changed."""
        self._known.clear()

    def admit(self, given: Credentials, then: Then) -> None:
        """Have it decided whether someone may come in."""
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
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = KNOWN if verdict.seconds is None else min(KNOWN, verdict.seconds)
            self._known[key] = (self._broker.now + known, verdict)
        elif not given.silent:  # a browser asks without a name first, each time
            tell_refused(self._broker, given, verdict.code, verdict.reason or "not authorized")
        for then in self._waiting.pop(key, ()):
            then(verdict)

    def _key(self, given: Credentials) -> bytes:
        digest = hashlib.blake2b(key=self._secret)
        for part in (given.username, given.password, given.certificate, given.address):
            data = part.encode() if isinstance(part, str) else part
            digest.update(b"-" if data is None else b"%d:%s" % (len(data), data))
        return digest.digest()

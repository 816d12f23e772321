"""Authenticates requests over HTTP and Flight, with a cache: every request carries credentials."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

from pyrite.broker.access import Accept, Credentials, Refuse
from pyrite.broker.core import Broker
from pyrite.protocols.events import tell_refused

CACHE_TIME = 10.0
"""Seconds for which accepted credentials are not checked again: password hashing is slow on purpose."""
MAX_CACHED = 1_000

Then = Callable[[Accept | Refuse], None]


class Identity:
    """Authenticates callers with the access plug-in, and caches the result."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._secret = secrets.token_bytes(32)
        self._known: dict[bytes, tuple[float, Accept]] = {}
        """Accepted credentials and their expiry, by a keyed hash of the credentials and the address."""
        self._waiting: dict[bytes, list[Then]] = {}
        """Callbacks of requests whose credentials are being checked, by the same hash."""

    def forget(self) -> None:
        """Empty the cache, because users may have changed."""
        self._known.clear()

    def admit(self, given: Credentials, then: Then) -> None:
        """Authenticate a caller, and call `then` with the verdict, now or later."""
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
            except BaseException:  # a plug-in may raise anything
                self._waiting.pop(key, None)
                raise

    def _decided(self, key: bytes, given: Credentials, verdict: Accept | Refuse) -> None:
        if isinstance(verdict, Accept):
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            seconds = CACHE_TIME if verdict.seconds is None else min(CACHE_TIME, verdict.seconds)
            self._known[key] = (self._broker.now + seconds, verdict)
        elif not given.silent:  # the first request of a browser has no credentials
            tell_refused(self._broker, given, verdict.code, verdict.reason or "not authorized")
        for then in self._waiting.pop(key, ()):
            then(verdict)

    def _key(self, given: Credentials) -> bytes:
        digest = hashlib.blake2b(key=self._secret)
        for part in (given.username, given.password, given.certificate, given.address):
            data = part.encode() if isinstance(part, str) else part
            digest.update(b"-" if data is None else b"%d:%s" % (len(data), data))
        return digest.digest()

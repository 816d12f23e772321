"""Log-ins that failed: who has had too many of them waits.

They are counted by the network they came from, and by the name that was given. A name that has logged in from
a network before is counted by itself there: so neither a neighbour who mistypes nor someone who guesses from
elsewhere keeps it out, and whoever has an account of his own gains nothing for guessing those of others.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

FREE = 5
"""Failures from a network that cost nothing but the time of checking."""
FREE_BY_NAME = 50
"""The same for a name, from wherever: more, or anyone could keep someone out who comes from a new place."""
FIRST = 1.0
LONGEST = 60.0
"""Seconds that one is turned away for, unheard, after that: at first, and at most."""
FORGET = 600.0
"""Seconds after which failures are forgotten."""
REMEMBERED = 100_000
"""Counts that are remembered; and as many names that have logged in, with where from."""

Key = tuple[str | None, bytes | None]
"""A network, a name, or both."""


def network_of(address: str) -> str:
    """Return whom an address stands for: of IPv6 the /64, all of whose addresses one machine may have."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(IPv6Address(int(parsed) >> 64 << 64))
    return address


class Attempts:
    """Failed log-ins by network and name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: OrderedDict[Key, tuple[int, float]] = OrderedDict()
        self._came: OrderedDict[Key, None] = OrderedDict()
        """Names that have logged in, with where from."""

    def wait(self, address: str, name: str | None) -> float:
        """Return for how many seconds a log-in is still turned away unheard."""
        network, digest = network_of(address), _digest(name)
        if digest is not None and (network, digest) in self._came:
            return self._left((network, digest), FREE)
        return self.wait_of_unknown(address, name)

    def wait_of_unknown(self, address: str, name: str | None) -> float:
        """Return for how many seconds a log-in would be, were its name not known to come from there.

        A log-in that fails is told that, so that the answer does not tell which names are known.
        """
        network, digest = network_of(address), _digest(name)
        by_name = 0.0 if digest is None else self._left((None, digest), FREE_BY_NAME)
        return max(by_name, self._left((network, None), FREE))

    def _left(self, key: Key, free: int) -> float:
        count, last = self._failed.get(key, (0, 0.0))
        since = self._clock() - last
        if count < free or since > FORGET:
            return 0.0
        return max(0.0, min(LONGEST, FIRST * 2.0 ** min(count - free, 100)) - since)

    def failed(self, address: str, name: str | None) -> None:
        """Note that a log-in failed."""
        network, digest = network_of(address), _digest(name)
        now = self._clock()
        keys: list[Key] = [(network, None)]
        if digest is not None:
            keys += [(None, digest), (network, digest)]
        if self.wait_of_unknown(
            address, name
        ):  # others are not heard now, so this must not make them wait more
            keys = [(network, digest)]
        for key in keys:
            count, last = self._failed.pop(key, (0, 0.0))
            self._failed[key] = (1 if now - last > FORGET else count + 1, now)
        while len(self._failed) > REMEMBERED:
            self._failed.popitem(last=False)

    def succeeded(self, address: str, name: str | None) -> None:
        """Note that a log-in did not: what had failed under this name, from there, is forgotten."""
        network, digest = network_of(address), _digest(name)
        if digest is None:
            return
        own, _ = self._failed.pop((network, digest), (0, 0.0))
        if own:
            for key in ((network, None), (None, digest)):
                count, last = self._failed.get(key, (0, 0.0))
                if count > own:
                    self._failed[key] = (count - own, last)
                else:
                    self._failed.pop(key, None)
        self._came[network, digest] = None
        self._came.move_to_end((network, digest))
        if len(self._came) > REMEMBERED:
            self._came.popitem(last=False)


def _digest(name: str | None) -> bytes | None:
    """Return what is remembered of a name, which may be as long as a packet; None if none was given."""
    return hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=16).digest() if name else None

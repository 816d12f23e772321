"""Failed log-ins, and the locks that they cause.

Failures are counted by network and by name; too many lock the network or the name for a while. A name that
has logged in from a network before may do so while that network or the name is locked: neither a neighbour
who mistypes nor an attacker elsewhere keeps it out. Each name has a lock of its own on each network, known or
not: so the lock does not tell which names are known.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

FREE = 5
"""Failures of a network, or of a name on a network, before a lock."""
FREE_BY_NAME = 50
"""Failures of a name over all networks before a lock: fewer would let anyone keep a user out."""
FIRST = 1.0
LONGEST = 60.0
"""Seconds that the first lock and the longest lock last; each failure doubles the time."""
FORGET = 600.0
"""Seconds after which failures are forgotten."""
REMEMBERED = 100_000
"""Counts of failures that are kept, and names that have logged in, by network."""

Key = tuple[str | None, bytes | None]
"""A network, a name, or both."""


class _Failures(NamedTuple):
    number: int = 0
    last: float = 0.0
    shared: int = 0
    """Of a name on a network: how many of them were also counted for the network and for the name."""


def network_of(address: str) -> str:
    """Return the network that an address counts for: of IPv6 the /64, which one machine may own."""
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
    """Failed log-ins by network and name. Times are seconds until a lock ends, 0 without a lock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: OrderedDict[Key, _Failures] = OrderedDict()
        self._came: OrderedDict[Key, None] = OrderedDict()
        """Names that have logged in, with the network."""

    def network_lock(self, address: str) -> float:
        """Return the time until a network is no longer locked."""
        return self._left((network_of(address), None), FREE)

    def own_lock(self, address: str, name: str | None) -> float:
        """Return the time until a name is no longer locked on its network, whether it is known or not."""
        return self._left((network_of(address), _digest(name)), FREE)

    def longest_lock(self, address: str, name: str | None) -> float:
        """Return the time until no lock is left that applies to an unknown name: what a failure is told."""
        by_name = self._left((None, _digest(name)), FREE_BY_NAME) if name else 0.0
        return max(by_name, self.network_lock(address), self.own_lock(address, name))

    def wait(self, address: str, name: str | None) -> float:
        """Return the time until a log-in with the right password is let in."""
        if (network_of(address), _digest(name)) in self._came:
            return self.own_lock(address, name)
        return self.longest_lock(address, name)

    def _left(self, key: Key, free: int) -> float:
        count, last, _ = self._failed.get(key, _Failures())
        since = self._clock() - last
        if count < free or since > FORGET:
            return 0.0
        return max(0.0, min(LONGEST, FIRST * 2.0 ** min(count - free, 100)) - since)

    def failed(self, address: str, name: str | None) -> None:
        """Count a log-in that failed."""
        network, digest = network_of(address), _digest(name)
        now = self._clock()
        shared = not self.longest_lock(address, name)  # a lock must not grow by what it refuses
        keys: list[Key] = [(network, digest)]
        if shared:
            keys += [(network, None), (None, digest)] if name else [(network, None)]
        for key in keys:
            before = self._failed.pop(key, _Failures())
            if now - before.last > FORGET:
                before = _Failures()
            self._failed[key] = _Failures(before.number + 1, now, before.shared + shared)
        while len(self._failed) > REMEMBERED:
            self._failed.popitem(last=False)

    def succeeded(self, address: str, name: str | None) -> None:
        """Note a log-in, and forget what had failed under this name on its network."""
        if not name:
            return
        network, digest = network_of(address), _digest(name)
        own = self._failed.pop((network, digest), _Failures()).shared
        if own:
            for key in ((network, None), (None, digest)):
                before = self._failed.get(key, _Failures())
                if before.number > own:
                    self._failed[key] = before._replace(number=before.number - own)
                else:
                    self._failed.pop(key, None)
        self._came[network, digest] = None
        self._came.move_to_end((network, digest))
        if len(self._came) > REMEMBERED:
            self._came.popitem(last=False)


def _digest(name: str | None) -> bytes:
    """Return what is kept of a name, which may be as long as a packet."""
    return hashlib.blake2b((name or "").encode("utf-8", "replace"), digest_size=16).digest()

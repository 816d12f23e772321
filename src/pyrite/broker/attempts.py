"""Failed log-ins, and the locks that they cause.

Failures are counted by network and by name; too many lock the network or the name for a while. A name that
has logged in from a network before may do so during a lock: neither mistyping neighbours nor an attacker
elsewhere lock it out. Each name has its own lock on each network, whether it exists or not, so locks do not
reveal which names exist.
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
"""Failures of a name over all networks before a lock; a lower number would let anyone lock a user out."""
FIRST_LOCK = 1.0
LONGEST_LOCK = 60.0
"""Seconds that the first and the longest lock last; each failure doubles the time."""
FORGET_FAILURES_AFTER = 600.0
"""Seconds after which failures are forgotten."""
MAX_REMEMBERED = 100_000
"""Failure counters that are kept, and names that have logged in, by network."""

Key = tuple[str | None, bytes | None]
"""A network, a name, or both."""


class _Failures(NamedTuple):
    number: int = 0
    last: float = 0.0
    shared: int = 0
    """For a name on a network: how many failures were also counted for the network and for the name."""


def network_of(address: str) -> str:
    """Return the network that an address counts for: for IPv6 the /64, which one machine may own."""
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
        """Names that have logged in, with their networks."""

    def network_lock(self, address: str) -> float:
        """Return the time until a network is no longer locked."""
        return self._left((network_of(address), None), FREE)

    def own_lock(self, address: str, name: str | None) -> float:
        """Return the time until a name is no longer locked on its network, whether it exists or not."""
        return self._left((network_of(address), _digest(name)), FREE)

    def longest_lock(self, address: str, name: str | None) -> float:
        """Return the time until no lock applies to an unknown name, as reported after a failure."""
        by_name = self._left((None, _digest(name)), FREE_BY_NAME) if name else 0.0
        return max(by_name, self.network_lock(address), self.own_lock(address, name))

    def wait(self, address: str, name: str | None) -> float:
        """Return the time until a log-in with the right password is accepted."""
        if (network_of(address), _digest(name)) in self._came:
            return self.own_lock(address, name)
        return self.longest_lock(address, name)

    def _left(self, key: Key, free: int) -> float:
        count, last, _ = self._failed.get(key, _Failures())
        since = self._clock() - last
        if count < free or since > FORGET_FAILURES_AFTER:
            return 0.0
        return max(0.0, min(LONGEST_LOCK, FIRST_LOCK * 2.0 ** min(count - free, 100)) - since)

    def failed(self, address: str, name: str | None) -> None:
        """Count a log-in that failed."""
        network, digest = network_of(address), _digest(name)
        now = self._clock()
        shared = not self.longest_lock(address, name)  # refusals during a lock must not extend it
        keys: list[Key] = [(network, digest)]
        if shared:
            keys += [(network, None), (None, digest)] if name else [(network, None)]
        for key in keys:
            before = self._failed.pop(key, _Failures())
            if now - before.last > FORGET_FAILURES_AFTER:
                before = _Failures()
            self._failed[key] = _Failures(before.number + 1, now, before.shared + shared)
        while len(self._failed) > MAX_REMEMBERED:
            self._failed.popitem(last=False)

    def succeeded(self, address: str, name: str | None) -> None:
        """Record a successful log-in, and forget failures of this name on its network."""
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
        if len(self._came) > MAX_REMEMBERED:
            self._came.popitem(last=False)


def _digest(name: str | None) -> bytes:
    """Return a digest of a name, which may be as long as a packet."""
    return hashlib.blake2b((name or "").encode("utf-8", "replace"), digest_size=16).digest()

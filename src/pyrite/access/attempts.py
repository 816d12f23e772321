"""Log-ins that failed: who has had too many of them waits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

FREE = 5
"""Failures in a row that cost nothing but the time of checking."""
FIRST = 1.0
LONGEST = 60.0
"""Seconds that an address is turned away for, unheard, after that: at first, and at most."""
FORGET = 600.0
"""Seconds after which failures are forgotten."""
REMEMBERED = 100_000
"""Addresses that are remembered."""


class Attempts:
    """Failed log-ins by address."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Return for how many seconds an address is still turned away."""
        count, last = self._failed.get(address, (0, 0.0))
        since = self._clock() - last
        if count < FREE or since > FORGET:
            return 0.0
        return max(0.0, min(LONGEST, FIRST * 2.0 ** (count - FREE)) - since)

    def failed(self, address: str) -> None:
        """Note that a log-in failed."""
        count, last = self._failed.pop(address, (0, 0.0))
        now = self._clock()
        self._failed[address] = (1 if now - last > FORGET else count + 1, now)
        if len(self._failed) > REMEMBERED:
            self._failed.popitem(last=False)

    def succeeded(self, address: str) -> None:
        """Forget the failures of an address."""
        self._failed.pop(address, None)

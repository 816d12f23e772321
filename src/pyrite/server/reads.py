"""How many reads of the log and waiting pulls one user has under way over HTTP and Flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from pyrite.broker.access import Credentials


class Reads:
    """Counts the reads of each user, or of each address where there is no name, over all processes.

    `most` returns how many one user may have at a time.
    """

    def __init__(self, most: Callable[[Credentials], int]) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()
        self._users: dict[tuple[object, int], str] = {}
        """Whose each read is, by the process that has asked for it and the number of its question."""

    def begin(self, process: object, number: int, who: Credentials) -> bool:
        """Count one more read; False if the user has as many as may be."""
        user = who.asker.user
        if self._counts[user] >= self._most(who):
            return False
        self._counts[user] += 1
        self._users[process, number] = user
        return True

    def end(self, process: object, number: int) -> None:
        """Count a read no longer, if it was counted."""
        user = self._users.pop((process, number), None)
        if user is not None:
            self._counts[user] -= 1
            if not self._counts[user]:
                del self._counts[user]

    def end_all(self, process: object) -> None:
        """Count none of a process that has ended."""
        for one, number in list(self._users):
            if one is process:
                self.end(one, number)

    def count(self, who: Credentials) -> int:
        """Return how many reads a user has under way."""
        return self._counts.get(who.asker.user, 0)

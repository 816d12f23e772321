"""Answer commands in order, each once its effect is committed."""

from __future__ import annotations

from collections.abc import Callable

from pyrite.broker.journal import Journal

Call = Callable[[], object]


class Answers:
    """Delays answers until the journal has committed what they confirm, and keeps them in order."""

    __slots__ = ("_journal", "uncommitted")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.uncommitted = 0
        """Number of answers that wait for a commit. Every later answer waits for them."""

    def in_turn(self, answer: Call) -> None:
        """Call `answer` after all earlier answers."""
        if self.uncommitted:
            self.when_committed(answer)
        else:
            self._journal.in_turn(answer)

    def when_committed(self, answer: Call) -> None:
        """Call `answer` when every change so far is committed, after all earlier answers."""
        self._journal.after(self.reserve(answer))

    def reserve(self, answer: Call) -> Call:
        """Make later answers wait for this one. The caller must call the returned function, or `withdraw`."""
        self.uncommitted += 1

        def committed() -> None:
            self.uncommitted -= 1
            answer()

        return committed

    def withdraw(self) -> None:
        """Cancel a reserved answer."""
        self.uncommitted -= 1

"""Sinks: whose they are, what may be staged for them, and their commits, one after the other (commit.py)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyrite.broker.timers import NO_SLOT
from pyrite.sinks.commit import Answer, Commit, RefusePublish, SinkState, log_what_is_wrong
from pyrite.sinks.staging import KEPT, Staging
from pyrite.storage.query import QueryError

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.journal.disk import DiskJournal

__all__ = ["SinkState", "Sinks"]

logger = logging.getLogger(__name__)

FORGET = 90 * 86_400.0
"""Seconds after which a sink that has committed nothing is forgotten, when a broker starts."""
TIDY = 3_600.0
"""Seconds between two looks for what was staged and never committed."""
MAX_GIVEN_UP = 1_000
"""Sinks that were given up and are remembered; what is staged for others is removed after a day."""

MAX_UNCOMMITTED = 10_000
"""Parts that may be staged for a sink before its first commit."""

Told = Callable[[str], object]
"""Is told what is wrong; nothing, if all is well."""


class Sinks:
    """All sinks of a broker: their commits, one after the other, and what is staged for them."""

    def __init__(self, journal: DiskJournal, broker: Broker) -> None:
        self.journal = journal
        self.broker = broker
        self.staging = Staging(journal.folder.path, journal.files)
        self.slot = NO_SLOT
        self._commits: deque[Commit] = deque()
        self._given_up: dict[tuple[str, str | None], None] = {}
        """Sinks for which a user stages nothing any more, the last ones."""
        now = journal.wall()
        for state in list(journal.sinks.values()):
            kept = FORGET if state.batch >= 0 else KEPT
            if state.pending is None and state.used < now - kept:
                del journal.sinks[state.name]
                journal.drop_sink(state.name)
        for state in list(journal.sinks.values()):
            if state.pending is not None:
                logger.warning(
                    "sink %s: batch %d was cut short; it is finished now", state.name, state.pending.batch
                )
                self._finish(state, log_what_is_wrong)
        self.due()

    def due(self) -> None:
        """Every hour: remove what was staged and never committed."""
        needed = {one.name for one in self.journal.sinks.values() if one.pending is not None}
        needed.update(one.state.name for one in self._commits)
        self._aside(lambda: self.staging.tidy(needed.__contains__), log_what_is_wrong)
        self.broker.timers.set(self, self.broker.now + TIDY)

    def _aside(self, job: Callable[[], object], told: Told) -> None:
        """Do something to files in another thread, and say how it went."""

        def guarded() -> str:
            try:
                job()
            except (OSError, QueryError) as error:
                return str(error)
            return ""

        self.journal.aside(guarded, told)

    # Whose it is

    def owner(self, sink: str) -> str | None:
        """Return the user who owns a sink: the first who committed to it."""
        state = self.journal.sinks.get(sink)
        return None if state is None else state.owner

    def has_staged(self, sink: str, user: str) -> bool:
        """Tell whether a user has staged something for a sink that nobody owns yet."""
        state = self.journal.sinks.get(sink)
        return state is not None and user in state.staged.values()

    def _note_staged(self, sink: str, part: str, user: str) -> tuple[SinkState, str]:
        """Note who stages a part of a sink; return its state, and why the part may not be staged."""
        state = self.journal.sinks.setdefault(sink, SinkState(sink))
        if state.owner is not None or state.staged.get(part) == user:
            return state, ""
        if len(state.staged) >= MAX_UNCOMMITTED:
            return state, f"sink {sink!r}: {MAX_UNCOMMITTED} parts are staged, and none is committed yet"
        state.staged[part] = user
        state.used = max(state.used, self.journal.wall())
        self.journal.save_sink(state)
        return state, ""

    def _forget_staged(self, state: SinkState, parts: Sequence[str]) -> None:
        for part in parts:
            state.staged.pop(part, None)
        if not state.staged and state.owner is None and state.batch < 0 and state.pending is None:
            self.journal.sinks.pop(state.name, None)
            self.journal.drop_sink(state.name)
        else:
            self.journal.save_sink(state)

    def delete(self, sink: str, told: Told) -> None:
        """Forget a sink: its name, its owner, the number of its last batch, and what is staged for it."""
        state = self.journal.sinks.get(sink)
        if state is None:
            told("")
        elif state.pending is not None or self._is_under_way(sink):
            told(f"sink {sink!r}: a commit is under way")
        else:
            del self.journal.sinks[sink]
            self.journal.drop_sink(sink)
            self.remove(sink, None, lambda wrong: self.journal.after(lambda: told(wrong)))

    # Staging

    def stage(self, sink: str, part: str, owner: str | None, told: Told) -> None:
        """Say whether a part may be staged.

        A batch that is not finished comes first: its parts may have the same names, and all are removed then.
        """
        if owner is None:
            state, refusal = self.journal.sinks.get(sink), ""
        else:
            state, refusal = self._note_staged(sink, part, owner)
        if refusal:
            told(refusal)
            return

        def finished(wrong: str) -> None:
            if wrong:
                told(f"sink {sink!r}: an earlier batch cannot be finished: {wrong}")
            elif part in self.needed(sink):
                told(f"part {part!r} of sink {sink!r} is being committed")
            elif owner is not None:
                self.journal.after(lambda: self.room(sink, owner, told))
            else:
                self.room(sink, owner, told)

        if state is not None and (state.pending is not None or self._is_under_way(sink)):
            self._finish(state, finished)
        else:
            finished("")

    def room(self, sink: str, owner: str | None, told: Told) -> None:
        """Say whether there may be as much staged as there is now."""
        most = self.broker.limits.max_staged_bytes
        sinks = self.journal.sinks

        def is_owners(name: str, part: str) -> bool:
            state = sinks.get(name)
            return state is not None and owner in (state.owner, state.staged.get(part))

        def measure() -> None:
            staged = self.staging.size(is_owners)
            if staged > most:
                raise QueryError(
                    f"sink {sink!r}: there is no room for more: {staged} bytes are staged and not committed, "
                    f"limits.max_staged_bytes is {most}"
                )

        if (sink, owner) in self._given_up:
            told(f"sink {sink!r} was given up")
        elif owner is None:
            told("")
        else:
            self._aside(measure, told)

    def abort(self, sink: str, parts: Sequence[str] | None, told: Told, user: str | None = None) -> None:
        """Remove parts that were staged; without a list all, and have none staged from now on.

        Before the first commit, a user's own parts are all that it can remove.
        What a commit has begun to publish cannot be taken back: its parts stay, and without a list the rest
        is published first, so that it is all or nothing.
        """
        state = self.journal.sinks.get(sink)
        uncommitted = state is not None and state.owner is None and user is not None
        own = [part for part, by in state.staged.items() if by == user] if state is not None else []
        if parts is not None:
            parts = [part for part in parts if part in own] if uncommitted else parts
            if uncommitted and state is not None:
                self._forget_staged(state, parts)
            self.remove(sink, parts, told)
            return
        if len(self._given_up) >= MAX_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[sink, user] = None
        if uncommitted and state is not None:
            self._forget_staged(state, own)
            self.remove(sink, own, told)
            return
        if state is None or state.pending is None or self._is_under_way(sink):
            self.remove(sink, None, told)
        else:
            self._finish(state, lambda wrong: self.remove(sink, None, lambda left: told(wrong or left)))

    def remove(
        self, sink: str, parts: Sequence[str] | None, told: Told, besides: Commit | None = None
    ) -> None:
        """Remove parts, or all, but for those that a commit needs, besides one."""
        needed = self.needed(sink, besides)
        self._aside(lambda: self.staging.remove(sink, parts, needed), told)

    def needed(self, sink: str, besides: Commit | None = None) -> set[str]:
        """Return the parts of a sink that are not to be touched, as a commit needs them, besides one."""
        commits = [one for one in self._commits if one.state.name == sink and one is not besides]
        needed = {part for one in commits for part in one.parts}
        state = self.journal.sinks.get(sink)
        if state is not None and state.pending is not None:
            needed.update(state.pending.parts)
        return needed

    # Commits

    def commit(
        self,
        sink: str,
        batch: int,
        parts: Sequence[str],
        refuse: RefusePublish,
        answer: Answer,
        user: str | None = None,
    ) -> None:
        """Publish what was staged, and tell when it is safe; or why it is not.

        The first user who commits to a sink owns it from then on.
        """
        state = self.journal.sinks.setdefault(sink, SinkState(sink))
        if user is not None and state.owner is None:
            foreign = [part for part in parts if state.staged.get(part) != user]
            if foreign:
                answer(False, f"part {foreign[0]!r} of sink {sink!r} was not staged by this user")
                return
        if state.pending is not None and state.pending.batch != batch and not self._is_under_way(sink):
            self._finish(state, log_what_is_wrong)  # It comes first, as it was promised first.
        self._add(Commit(self, state, batch, list(parts), refuse, answer, user))

    def _finish(self, state: SinkState, told: Told) -> None:
        """Do what is missing of a commit that was begun, after those that are under way."""
        batch = -1 if state.pending is None else state.pending.batch
        self._add(Commit(self, state, batch, [], lambda _: None, lambda _, wrong: told(wrong)))

    def _is_under_way(self, sink: str) -> bool:
        return any(one.state.name == sink for one in self._commits)

    def _add(self, commit: Commit) -> None:
        self._commits.append(commit)
        if len(self._commits) == 1:
            commit.begin()

    def ended(self) -> None:
        """Go on with the next commit."""
        self._commits.popleft()
        if self._commits:
            self._commits[0].begin()

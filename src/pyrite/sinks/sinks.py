"""Sinks: their owners, staged parts, and commits, one at a time (commit.py)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyrite.broker.timers import NO_SLOT
from pyrite.journal.sink_state import SinkState
from pyrite.sinks.commit import Answer, RefusePublish, SinkCommit, log_failure
from pyrite.sinks.staging import KEPT, Staging
from pyrite.storage.query import QueryError

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.journal.disk import DiskJournal

logger = logging.getLogger(__name__)

FORGET_AFTER = 90 * 86_400.0
"""Seconds without a commit after which a sink is forgotten at the next start."""
TIDY = 3_600.0
"""Seconds between two removals of parts that were never committed."""
MAX_ABORTED = 1_000
"""Aborted sinks that are remembered, so that no late writer stages a part; other parts go after a day."""
MAX_UNCOMMITTED = 10_000
"""Parts that may be staged for a sink before its first commit."""

Told = Callable[[str], object]
"""Called with an error text, which is empty for success."""


class Sinks:
    """All sinks of a broker."""

    def __init__(self, journal: DiskJournal, broker: Broker) -> None:
        self.journal = journal
        self.broker = broker
        self.staging = Staging(journal.folder.path, journal.files)
        self.slot = NO_SLOT
        self._commits: deque[SinkCommit] = deque()
        self._aborted: dict[tuple[str, str | None], None] = {}
        """Aborted sinks with the user who aborted, oldest first."""
        now = journal.wall()
        for state in list(journal.sinks.values()):
            kept = FORGET_AFTER if state.batch >= 0 else KEPT
            if state.pending is None and state.used < now - kept:
                del journal.sinks[state.name]
                journal.state.drop_sink(state.name)
        for state in list(journal.sinks.values()):
            if state.pending is not None:
                logger.warning(
                    "sink %s: finishing batch %d, which was interrupted", state.name, state.pending.batch
                )
                self._finish(state, log_failure)
        self.due()

    def due(self) -> None:
        """Remove old parts that were never committed, every hour."""
        needed = {one.name for one in self.journal.sinks.values() if one.pending is not None}
        needed.update(one.state.name for one in self._commits)
        self._offload(lambda: self.staging.tidy(needed.__contains__), log_failure)
        self.broker.timers.set(self, self.broker.now + TIDY)

    def _offload(self, job: Callable[[], object], told: Told) -> None:
        """Run a job on files in another thread, and report errors to `told`."""

        def guarded() -> str:
            try:
                job()
            except (OSError, QueryError) as error:
                return str(error)
            return ""

        self.journal.offload(guarded, told)

    # Owners

    def owner(self, sink: str) -> str | None:
        """Return the user who owns a sink: the first to commit to it."""
        state = self.journal.sinks.get(sink)
        return None if state is None else state.owner

    def has_staged(self, sink: str, user: str) -> bool:
        """Return True if a user has staged a part of a sink that has no owner yet."""
        state = self.journal.sinks.get(sink)
        return state is not None and user in state.staged.values()

    def _note_staged(self, sink: str, part: str, user: str) -> tuple[SinkState, str]:
        """Record who stages a part; return the state of the sink, and a text if the part is refused."""
        state = self.journal.sinks.setdefault(sink, SinkState(sink))
        if state.owner is not None or state.staged.get(part) == user:
            return state, ""
        if len(state.staged) >= MAX_UNCOMMITTED:
            return state, f"sink {sink!r}: {MAX_UNCOMMITTED} parts are staged and none is committed"
        state.staged[part] = user
        state.used = max(state.used, self.journal.wall())
        self.journal.state.save_sink(state)
        return state, ""

    def _forget_staged(self, state: SinkState, parts: Sequence[str]) -> None:
        for part in parts:
            state.staged.pop(part, None)
        if not state.staged and state.owner is None and state.batch < 0 and state.pending is None:
            self.journal.sinks.pop(state.name, None)
            self.journal.state.drop_sink(state.name)
        else:
            self.journal.state.save_sink(state)

    def delete(self, sink: str, told: Told) -> None:
        """Delete a sink: its owner, the number of its last batch, and its staged parts."""
        state = self.journal.sinks.get(sink)
        if state is None:
            told("")
        elif state.pending is not None or self._is_under_way(sink):
            told(f"sink {sink!r}: a commit is in progress")
        else:
            del self.journal.sinks[sink]
            self.journal.state.drop_sink(sink)
            self.remove(sink, None, lambda wrong: self.journal.after(lambda: told(wrong)))

    # Staging

    def stage(self, sink: str, part: str, owner: str | None, told: Told) -> None:
        """Check whether a part may be staged.

        An unfinished batch is finished first: its parts may have the same names, and are then removed.
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
        """Check whether the staged parts of the sink's owner are within max_staged_bytes."""
        most = self.broker.limits.max_staged_bytes
        sinks = self.journal.sinks

        def is_owners(name: str, part: str) -> bool:
            state = sinks.get(name)
            return state is not None and owner in (state.owner, state.staged.get(part))

        def measure() -> None:
            staged = self.staging.size(is_owners)
            if staged > most:
                raise QueryError(
                    f"sink {sink!r}: no room for more: {staged} bytes are staged and not committed, "
                    f"limits.max_staged_bytes is {most}"
                )

        if (sink, owner) in self._aborted:
            told(f"sink {sink!r} was aborted")
        elif owner is None:
            told("")
        else:
            self._offload(measure, told)

    def abort(self, sink: str, parts: Sequence[str] | None, told: Told, user: str | None = None) -> None:
        """Remove staged parts; without a list, remove all parts and refuse new ones.

        Before the first commit, users can remove only their own parts. A commit that has begun to publish
        cannot be undone: its parts stay, and without a list, the commit is finished first.
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
        if len(self._aborted) >= MAX_ABORTED:
            del self._aborted[next(iter(self._aborted))]
        self._aborted[sink, user] = None
        if uncommitted and state is not None:
            self._forget_staged(state, own)
            self.remove(sink, own, told)
            return
        if state is None or state.pending is None or self._is_under_way(sink):
            self.remove(sink, None, told)
        else:
            self._finish(state, lambda wrong: self.remove(sink, None, lambda left: told(wrong or left)))

    def remove(
        self, sink: str, parts: Sequence[str] | None, told: Told, other_than: SinkCommit | None = None
    ) -> None:
        """Remove parts, or all parts, except those that a commit needs."""
        needed = self.needed(sink, other_than)
        self._offload(lambda: self.staging.remove(sink, parts, needed), told)

    def needed(self, sink: str, other_than: SinkCommit | None = None) -> set[str]:
        """Return the parts of a sink that its commits need."""
        commits = [one for one in self._commits if one.state.name == sink and one is not other_than]
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
        """Publish staged parts, and call `answer` when they are durable or have failed.

        The first user to commit to a sink owns it from then on.
        """
        state = self.journal.sinks.setdefault(sink, SinkState(sink))
        if user is not None and state.owner is None:
            foreign = [part for part in parts if state.staged.get(part) != user]
            if foreign:
                answer(False, f"part {foreign[0]!r} of sink {sink!r} was not staged by this user")
                return
        if state.pending is not None and state.pending.batch != batch and not self._is_under_way(sink):
            self._finish(state, log_failure)  # promised earlier, so finished first
        self._add(SinkCommit(self, state, batch, list(parts), refuse, answer, user))

    def _finish(self, state: SinkState, told: Told) -> None:
        """Finish a commit that was interrupted, after the commits in progress."""
        batch = -1 if state.pending is None else state.pending.batch
        self._add(SinkCommit(self, state, batch, [], lambda *_: None, lambda _, wrong: told(wrong)))

    def _is_under_way(self, sink: str) -> bool:
        return any(one.state.name == sink for one in self._commits)

    def _add(self, commit: SinkCommit) -> None:
        self._commits.append(commit)
        if len(self._commits) == 1:
            commit.begin()

    def ended(self) -> None:
        """Begin the next commit."""
        self._commits.popleft()
        if self._commits:
            self._commits[0].begin()

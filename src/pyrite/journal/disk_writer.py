"""Writes groups to the disk: messages in one thread, then the state in another."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from pyrite.journal.faults import STATE, fault_of
from pyrite.journal.group import Group, StateCommit, fail_group
from pyrite.journal.log import Log
from pyrite.journal.state import State
from pyrite.journal.workers import Worker

T = TypeVar("T")


class DiskWriter:
    """Makes groups durable in a data folder."""

    def __init__(self, log: Log, state: State, writing: Worker, committing: Worker) -> None:
        self._log = log
        self._state = state
        self.writing = writing
        self._committing = committing

    def write(
        self,
        group: Group,
        written: Callable[[Group], object],
        committed: Callable[[StateCommit], object],
    ) -> None:
        """Write a group's messages, then its state changes; report each in the event loop's thread."""
        self.writing.run(partial(self.write_messages, group), written, partial(fail_group, group))
        if group.state is not None:
            self._committing.run(partial(self.commit, group.state), committed)

    def write_messages(self, group: Group) -> Group:
        """Write the messages of a group."""
        try:
            self._log.write(group)
        finally:
            if group.state is not None:
                group.state.may_begin.set()
        return group

    def commit(self, commit: StateCommit) -> StateCommit:
        """Commit state changes, after the messages that they may refer to."""
        commit.may_begin.wait()
        try:
            self._state.commit(list(commit.changes))
        except Exception as error:  # of any kind: it is retried, and its waiters go on waiting
            commit.fault = fault_of(error, STATE)
            with suppress(sqlite3.Error):  # then all of them are kept
                commit.changes.forget_needless(self._state.finds)
        return commit

    def read_state(self, job: Callable[[], T], then: Callable[[T | None], object]) -> None:
        """Read the state after everything that was requested; None if it cannot be read."""
        self._committing.run(job, then, lambda error: None)

    def write_last(self, group: Group, before: StateCommit | None) -> None:
        """Write the last group, with the state changes of `before` if these could not be committed."""
        last = group.state
        assert last is not None

        def commit_last() -> StateCommit:
            if before is not None and before.fault is not None:
                before.changes.update(last.changes)
                last.changes = before.changes
            return self.commit(last)

        self.writing.run(partial(self.write_messages, group), _ignore, partial(fail_group, group))
        self._committing.run(commit_last, _ignore)

    def stop(self) -> None:
        """Finish what was requested, and stop the threads."""
        self.writing.stop()
        self._committing.stop()


def _ignore(_: object) -> None:
    pass

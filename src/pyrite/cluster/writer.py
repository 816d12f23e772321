"""Writing groups on a node of a cluster: after a failure nothing more is written, and the node stops.

What is missing then is applied again at the next start, from the last committed state. So no state may be
committed that includes messages which are not in the log.
"""

from __future__ import annotations

from pyrite.broker.journal import Fault
from pyrite.journal.disk_writer import DiskWriter
from pyrite.journal.faults import STATE, fault_of
from pyrite.journal.group import Group, StateCommit
from pyrite.journal.log import Log
from pyrite.journal.state import State
from pyrite.journal.workers import Worker


class ReplicaWriter(DiskWriter):
    """Makes groups durable in a data folder, until the first of them fails."""

    def __init__(self, log: Log, state: State, writing: Worker, committing: Worker) -> None:
        super().__init__(log, state, writing, committing)
        self._failed: Fault | None = None

    def write_messages(self, group: Group) -> Group:
        """Write the messages of a group, unless those of an earlier one are missing."""
        try:
            if self._failed is None:
                self._log.write(group)
                self._failed = next(iter(group.faults.values()), None)
            else:
                group.faults = dict.fromkeys(group.gathered, self._failed)
        except Exception as error:
            self._failed = fault_of(error, STATE)
            raise
        finally:
            if group.state is not None:
                group.state.may_begin.set()
        return group

    def commit(self, commit: StateCommit) -> StateCommit:
        """Commit state changes, unless messages before them are missing."""
        commit.may_begin.wait()
        if self._failed is not None:
            commit.fault = self._failed
            return commit
        return super().commit(commit)

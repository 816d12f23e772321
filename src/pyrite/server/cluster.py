"""A node of a cluster: its journal, its engine, and how it joins, reports and leaves."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyrite.cluster.engine import Engine, EngineFailed, open_engine
from pyrite.cluster.journal import ClusterJournal, open_cluster_journal
from pyrite.errors import PyriteError
from pyrite.ipc.api.cluster import ClusterEngine, ClusterInfo, ClusterMember

if TYPE_CHECKING:
    from pyrite.server.config import Config

logger = logging.getLogger(__name__)

REPORT_INTERVAL = 1.0
"""Seconds between two reports of how far this node is."""
JOIN_INTERVAL = 5.0
"""Seconds between two lines about a node that is still joining."""


class ClusterFailed(PyriteError):
    """This node cannot be part of its cluster; the message says why."""


class ClusterNode:
    """This broker as a node of a cluster. `work` makes all calls back."""

    def __init__(
        self, config: Config, journal: ClusterJournal, work: Callable[[Callable[[], object]], object]
    ) -> None:
        self._config = config
        self._work = work
        self.journal = journal
        self.engine: Engine | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The reason why this node must stop, once there is one."""

    async def join(self) -> None:
        """Return when this node has applied everything that was in the order; raise ClusterFailed."""
        config, journal = self._config, self.journal
        try:
            engine = await open_engine(
                config.cluster, Path(config.data), journal.applied_sequence, self._work
            )
        except EngineFailed as error:
            raise ClusterFailed(str(error)) from None
        self.engine = engine
        ready = asyncio.Event()
        journal.when_halted(self._fail)
        journal.when_ready(ready.set)
        self._work(lambda: journal.join(engine))
        self._report()
        waiting = asyncio.create_task(ready.wait())
        while not ready.is_set():
            await asyncio.wait(
                (waiting, self.failed), timeout=JOIN_INTERVAL, return_when=asyncio.FIRST_COMPLETED
            )
            if self.failed.done():
                waiting.cancel()
                self.raise_failure()
            if not ready.is_set():
                status = engine.status
                trouble = status.trouble or f"applied group {journal.applied_sequence} of {status.last}"
                logger.warning("joining cluster %s: %s", config.cluster.name, trouble)

    def raise_failure(self) -> None:
        """Raise the reason why this node must stop."""
        raise ClusterFailed(self.failed.result())

    def _fail(self, reason: str) -> None:
        if not self.failed.done():
            self.failed.set_result(reason)

    def _report(self) -> None:
        """Tell the other nodes how far this one is, and once a second again."""
        if self.engine is not None:
            self._timer = asyncio.get_running_loop().call_later(REPORT_INTERVAL, self._report)
            place = {"sequence": self.sequence, "hash": self._hash}
            self.engine.hold_lease(self.journal.node, json.dumps(place).encode())

    async def leave(self) -> None:
        """Disconnect from the engine, and stop an embedded one."""
        if self._timer is not None:
            self._timer.cancel()
        if self.engine is not None:
            await self.engine.close()

    # What there is to know

    @property
    def has_quorum(self) -> bool:
        """Whether this node reaches a quorum, and goes on."""
        return self.journal.has_quorum

    @property
    def sequence(self) -> int:
        """The last group that this node has applied."""
        return self.journal.ledger.sequence

    @property
    def _hash(self) -> str:
        return f"{self.journal.ledger.hash:016x}"

    @property
    def lag(self) -> int:
        """Groups that the engine holds and this node has not applied."""
        return 0 if self.engine is None else max(0, self.engine.status.last - self.sequence)

    @property
    def unconfirmed(self) -> int:
        """Groups of this node that the engine has not confirmed."""
        return 0 if self.engine is None else self.engine.unconfirmed

    @property
    def nodes_here(self) -> int:
        """Nodes that are there, including this one."""
        others = {} if self.engine is None else self.engine.leases
        return len({self.journal.node, *others})

    def describe(self) -> ClusterInfo:
        """Return the state of the cluster as this node sees it."""
        journal, engine = self.journal, self.engine
        known = {} if engine is None else dict(engine.leases)
        places = {name: _place(value) for name, value in known.items()}
        places[journal.node] = (self.sequence, self._hash)
        names = sorted({*places, *journal.ledger.authors})
        status = None if engine is None else engine.status
        engines = [] if status is None else [ClusterEngine(*one) for one in sorted(status.replicas.items())]
        if status is not None and status.leader:
            engines.insert(0, ClusterEngine(status.leader, "leader"))
        return ClusterInfo(
            name=journal.cluster,
            node=journal.node,
            has_quorum=self.has_quorum,
            is_ready=journal.is_ready,
            trouble=journal.halted or ("" if status is None else status.trouble),
            first=0 if status is None else status.first,
            last=max(self.sequence, 0 if status is None else status.last),
            unconfirmed=self.unconfirmed,
            nodes=[ClusterMember(name, name in places, *places.get(name, (0, ""))) for name in names],
            engines=engines,
        )


def _place(value: bytes) -> tuple[int, str]:
    """Return sequence and hash from another node's heartbeat."""
    try:
        place = json.loads(value)
        return int(place["sequence"]), str(place["hash"])
    except (ValueError, KeyError, TypeError):
        return 0, ""


def open_node_journal(config: Config, **parts: object) -> ClusterJournal:
    """Open the data folder of a node."""
    options = config.cluster
    return open_cluster_journal(
        Path(config.data), config.stream, node=options.node, cluster=options.name, **parts
    )

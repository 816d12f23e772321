"""Nodes of a cluster in one process: brokers without sockets, over an order in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyrite.cluster.journal import ClusterJournal, open_cluster_journal
from pyrite.journal.disk import DiskJournal
from pyrite.storage.options import StreamOptions
from tests.cluster.memory import MemoryEngine, MemoryOrder
from tests.support.core import Core, no_internal_errors
from tests.support.durable import Deferred, Machine, OpenFiles, default_streams, quick_folder

State = dict[str, list[tuple[Any, ...]]]


class NodeCore(Core):
    """A broker whose flush has the whole cluster do what is to be done."""

    run: Callable[[], object] | None = None

    def flush(self) -> None:
        super().flush()
        if self.run is not None:
            self.run()

    def flush_alone(self) -> None:
        """Flush this broker, and no other node."""
        super().flush()


class Node(Machine):
    """One node."""

    journal: ClusterJournal
    core: NodeCore

    def __init__(self, cluster: Cluster, name: str, folder: str = "", **options: Any) -> None:
        self.cluster = cluster
        self.name = name
        self.order: MemoryOrder
        super().__init__(
            cluster.root / (folder or name), cluster.streams, files=lambda path: OpenFiles(), **options
        )

    def open_journal(self, **parts: Any) -> DiskJournal:
        return open_cluster_journal(self.data, self.streams, self.name, "test", **parts)

    def new_core(self, *values: Any, **options: Any) -> Core:
        core = NodeCore(*values, **options)
        self.order = MemoryOrder(self.cluster.engine, self.cluster.max_size)
        self.journal.join(self.order)
        return core

    def start(self, survives: int = 1 << 60) -> None:
        super().start(survives)
        self.core.run = self.cluster.run

    def crash(self, random: Any = None, keep: bool = True) -> None:
        self.order.end()
        super().crash(random, keep)

    def stop(self) -> None:
        self.order.end()
        super().stop()

    # What the node has

    def logs(self) -> dict[str, list[dict[str, Any]]]:
        """Return all messages of each stream."""
        return {one.name: self.log(one.name) for one in self.streams}

    def state(self) -> State:
        """Return the rows of the state, with the steps of each session's deliveries joined."""
        self.journal.groups.state_is_due = True
        self.journal.groups.kick()
        self.settle()
        database = self.journal.database._database
        found: State = {}
        for table in ("sessions", "subscriptions", "incoming", "retained", "consumers", "pending", "topics"):
            found[table] = sorted(row[:-1] for row in database.execute(f"SELECT * FROM {table}"))
        found["retained"] = [_retained(row) for row in found["retained"]]
        steps: dict[str, bytes] = {}
        for client, some in database.execute("SELECT client_id, steps FROM deliveries ORDER BY number"):
            steps[client] = steps.get(client, b"") + some
        found["deliveries"] = sorted(steps.items())
        rows = database.execute("SELECT kind, name, value FROM cluster ORDER BY kind, name")
        found["cluster"] = [
            (kind, name, value if kind == "will" else json.loads(value)) for kind, name, value in rows
        ]
        return found


def _retained(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Round the expiry of a retained message: each node derives it from its own clock."""
    message = json.loads(row[1])
    if "expires_at" in message:
        message["expires_at"] = round(message["expires_at"], 3)
    return (row[0], message, *row[2:])


class Cluster:
    """Some nodes, and the order between them."""

    def __init__(
        self,
        root: Path,
        names: str = "abc",
        streams: Sequence[StreamOptions] | None = None,
        max_size: int = 1 << 20,
        node_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.root = root
        self.streams = list(streams) if streams is not None else default_streams()
        for one in self.streams:
            one.fsync = "always"
        self.max_size = max_size
        self.node_options = dict(node_options or {})
        self.engine = MemoryEngine()
        self.is_automatic = True
        """Whether everything that is sent arrives at once."""
        self._is_running = False
        self.nodes: dict[str, Node] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> Node:
        """Start a new node."""
        node = self.nodes[name] = Node(self, name, **self.node_options)
        self.run()
        return node

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.running]

    def run(self) -> None:
        """Do everything that is to be done, unless the test does it step by step."""
        if not self.is_automatic or self._is_running:
            return
        self._is_running = True
        try:
            self.settle()
        finally:
            self._is_running = False

    def settle(self) -> None:
        """Deliver everything to all nodes, until nothing is left."""
        rounds = 0
        while True:
            rounds += 1
            assert rounds < 10_000, "the cluster never comes to rest"
            worked = False
            for node in self.running:
                Core.flush(node.core)
                while node.order.take():
                    worked = True
                while node.order.step():
                    worked = True
                Core.flush(node.core)
                for worker in (node.writing, node.committing, node.reading):
                    while isinstance(worker, Deferred) and worker.step():
                        worked = True
                        Core.flush(node.core)
            if not worked:
                return

    def tick(self, seconds: float = 1.0) -> None:
        """Let time pass on all nodes."""
        for node in self.running:
            node.tick(seconds)
        self.run()

    def check(self) -> None:
        """Require that all running nodes have the same log, state and ledger."""
        first, *others = self.running
        log, state = first.logs(), first.state()
        for node in others:
            assert node.logs() == log, f"the logs of {first.name} and {node.name} differ"
            found = node.state()
            for table, rows in state.items():
                assert found[table] == rows, f"{table} of {first.name} and {node.name} differ"
            assert node.journal.ledger.hash == first.journal.ledger.hash

    def close(self) -> None:
        """End all nodes."""
        self.is_automatic = False
        for node in self.running:
            node.core.run = None
            node.stop()


@contextmanager
def cluster_of(names: str = "abc", **options: Any) -> Iterator[Cluster]:
    """A cluster that ends with the test. It fails if a node logs an error."""
    with quick_folder() as folder, no_internal_errors():
        cluster = Cluster(folder, names, **options)
        try:
            yield cluster
        finally:
            cluster.close()

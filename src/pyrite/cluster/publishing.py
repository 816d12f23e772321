"""Publishing in a cluster: every message goes through the order, and is delivered when it comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyrite.broker.journal import Done, Fault
from pyrite.broker.message import Batch, MixedBatch
from pyrite.broker.publishing import RUN, Publishing
from pyrite.broker.retained import SYSTEM
from pyrite.broker.routes import Route

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.broker.session import Session
    from pyrite.cluster.journal import ClusterJournal


class OrderedPublishing(Publishing):
    """Hands batches to the journal, also those with QoS 0, and those that no stream captures."""

    def __init__(self, broker: Broker, journal: ClusterJournal) -> None:
        super().__init__(broker)
        self._cluster = journal

    def publish(
        self,
        batch: Batch,
        route: Route | None = None,
        done: Done | None = None,
        packet_ids: Sequence[int] | None = None,
    ) -> None:
        """Publish a batch. HOT."""
        broker = self._broker
        if batch.topic.startswith(SYSTEM):  # each node has its own
            super().publish(batch, route, done, packet_ids)
            return
        if route is None:
            route = self._subscriptions.route(batch.topic)
        if route.is_costly or batch.count > RUN:
            done = self._fan_outs.charged(batch, route, done)
        if batch.retain and broker.retained.fault(batch) is not None:
            broker.figures.retained_refused += 1
            batch.retain = False  # on every node: what a node has room for must not depend on the node
        self._cluster.send(route.stream, batch, done, packet_ids)

    def publish_will(self, session: Session, batch: Batch) -> None:
        """Publish the will of a session, which all nodes know."""
        self._cluster.wills.publish(session)

    def publish_mixed(
        self,
        batch: MixedBatch,
        routes: Sequence[Route],
        done: Done | None = None,
        packet_ids: Sequence[int] | None = None,
    ) -> None:
        """Publish a mixed batch. Messages that are retained or have properties go one by one."""
        if not batch.retain and not batch.varies:
            self.publish(batch, routes[0], done, packet_ids)
            return
        told = None if done is None else _Together(done, batch.count).done
        for number, (part, route) in enumerate(zip(batch.parts(), routes, strict=True)):
            self.publish(part, route, told, packet_ids and packet_ids[number : number + 1])

    def retain(self, batch: Batch) -> None:
        """Retain a batch's last message: its author has seen that there is room."""
        self._broker.retained.retain(batch, checked=True)


class _Together:
    """Calls `done` once, when it was called for each of several messages."""

    __slots__ = ("_done", "_fault", "_left", "_matched")

    def __init__(self, done: Done, count: int) -> None:
        self._done = done
        self._left = count
        self._matched = False
        self._fault: Fault | None = None

    def done(self, matched: bool, fault: Fault | None) -> None:
        """Count one of the messages."""
        self._matched = self._matched or matched
        self._fault = self._fault or fault
        self._left -= 1
        if not self._left:
            self._done(self._matched, self._fault)

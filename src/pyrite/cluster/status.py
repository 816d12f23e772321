"""What a node knows of its cluster, for people and monitoring."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyrite.cluster.journal import ClusterJournal


class NodeStatus(NamedTuple):
    """One node."""

    is_here: bool
    """Whether it has started, and was not declared gone."""
    position: int
    """How far it had applied the order when it made its last group; 0 if it has not made one."""
    agrees: bool
    """Whether it had applied the same as this node by then, as far as this node can tell."""


class ClusterStatus(NamedTuple):
    """A cluster as one of its nodes sees it."""

    cluster: str
    node: str
    is_ready: bool
    has_quorum: bool
    halted: str
    """Why this node has stopped; empty if it has not."""
    sequence: int
    """How far this node has applied the order."""
    hash: str
    """The hash of everything that it has applied."""
    waiting: int
    """Groups of this node that are not applied yet."""
    nodes: dict[str, NodeStatus]


def status_of(journal: ClusterJournal) -> ClusterStatus:
    """Return what a node knows of its cluster."""
    ledger, applying = journal.ledger, journal.applying
    nodes = {
        name: NodeStatus(author.is_here, applying.positions.get(name, 0), name not in applying.contradicted)
        for name, author in ledger.authors.items()
    }
    return ClusterStatus(
        journal.cluster,
        journal.node,
        journal.is_ready,
        journal.has_quorum,
        journal.halted,
        ledger.sequence,
        f"{ledger.hash:016x}",
        len(journal.outbound.in_flight) + bool(journal.outbound.waiting),
        nodes,
    )

"""Requests about the cluster."""

from __future__ import annotations

from pyrite.broker.access import Credentials
from pyrite.ipc.api.cluster import ClusterInfo, GetCluster
from pyrite.ipc.problem import Problem
from pyrite.ipc.server import Call
from pyrite.server.api.checks import check
from pyrite.server.gate import answers
from pyrite.server.metrics import Metrics


class ClusterRequests:
    """Answers requests about the cluster."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    @answers(GetCluster)
    def cluster(self, caller: Credentials, request: GetCluster, call: Call[ClusterInfo]) -> None:
        """Return the state of the cluster to a caller with the right `admin` on `#`."""
        check(self._metrics.broker.policy.refuse_admin(caller))
        node = self._metrics.node
        if node is None:
            raise Problem(404, "this broker is not a node of a cluster")
        call.reply(node.describe())

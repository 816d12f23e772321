"""The request for the state of the cluster."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from pyrite.ipc.api.endpoint import ApiRequest, Count, Endpoint, Shown


class ClusterMember(Struct):
    """A node, as this node knows it."""

    name: str
    is_here: Annotated[bool, Meta(description="False if it is gone: its clients have to connect elsewhere.")]
    sequence: Annotated[int, Meta(ge=0, description="The last group that it has applied.")]
    hash: Annotated[str, Meta(description="The hash of all groups up to there; equal on all nodes.")]


class ClusterEngine(Struct):
    """A server of the engine that keeps the groups."""

    name: str
    state: Annotated[str, Meta(description="leader, current, lags by N, or not heard for N s.")]


class ClusterInfo(Shown):
    """The state of the cluster, as this node sees it."""

    name: str
    node: Annotated[str, Meta(description="This node.")]
    has_quorum: bool
    is_ready: Annotated[bool, Meta(description="True if this node had caught up when it joined.")]
    trouble: Annotated[
        str, Meta(description="What keeps this node from the cluster, or halted it; or empty.")
    ]
    first: Annotated[int, Meta(ge=0, description="The oldest group that the engine keeps.")]
    last: Annotated[int, Meta(ge=0, description="The newest group.")]
    unconfirmed: Count
    nodes: list[ClusterMember]
    engines: list[ClusterEngine]


class GetCluster(ApiRequest[ClusterInfo]):
    """The state of the cluster; 404 if the broker is not a node of one."""

    endpoint = Endpoint("GET", "/api/v1/cluster", errors=(404,))

"""Nodes' engines in this process, with a real nats-server each."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pyrite.cluster.engine import Engine, open_engine
from pyrite.cluster.options import ClusterOptions
from pyrite.cluster.order import Appended

pytest.importorskip("nats")

PATIENCE = 60.0
"""Seconds to wait for something that takes a few, on a machine that does much else."""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


async def until(holds: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert holds(), what


class Node:
    """An engine, and what it has delivered."""

    def __init__(self, engine: Engine, after: int = 0) -> None:
        self.engine = engine
        self.got: list[tuple[int, bytes]] = []
        self.lost: list[int] = []
        self.follow(after)

    def follow(self, after: int) -> None:
        self.engine.follow(after, lambda sequence, data: self.got.append((sequence, data)), self.lost.append)

    async def append(self, data: bytes, identity: str) -> Appended:
        outcome: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.engine.append(data, identity, outcome.set_result)
        async with asyncio.timeout(PATIENCE):
            return await outcome

    def signal(self, number: int) -> None:
        """Send a signal to the node's nats-server."""
        assert self.engine.server is not None
        assert self.engine.server.pid is not None
        os.kill(self.engine.server.pid, number)

    @property
    def sequences(self) -> list[int]:
        return [sequence for sequence, _ in self.got]


async def opened(options: ClusterOptions, data: Path, applied: int = 0) -> Node:
    return Node(await open_engine(options, data, applied, lambda call: call()), applied)


@asynccontextmanager
async def three_nodes(folder: Path, applied: tuple[int, int, int] = (0, 0, 0)) -> AsyncIterator[list[Node]]:
    """Three engines that form a cluster on loopback."""
    routes = [f"127.0.0.1:{port}" for port in free_ports(3)]
    nodes: list[Node] = []
    try:
        for name, listen, last in zip("abc", routes, applied, strict=True):
            options = ClusterOptions(name="x", node=name, routes=routes, listen=listen, secret="s3:/ret")
            nodes.append(await opened(options, folder / name, last))
        await until(lambda: all(node.engine.has_quorum for node in nodes), "a quorum")
        yield nodes
    finally:
        for node in nodes:
            await node.engine.close()

"""The faults: each is injected, lasts a while, and is healed."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.cluster.nemesis.nodes import Cluster, Node

Fault = Callable[[Cluster, Node, random.Random], Iterator[str]]
"""Injects at the first step and says what, heals at the second."""


def kill_node(cluster: Cluster, victim: Node, choice: random.Random) -> Iterator[str]:
    """Kill a node and its engine."""
    victim.kill()
    yield "killed"
    victim.start()
    victim.wait()


def kill_engine(cluster: Cluster, victim: Node, choice: random.Random) -> Iterator[str]:
    """Kill an engine; its node restarts it."""
    victim.signal(signal.SIGKILL, engine=True)
    yield "engine killed"


def pause_node(cluster: Cluster, victim: Node, choice: random.Random) -> Iterator[str]:
    """Stop the process of a node for a while; its engine goes on."""
    victim.signal(signal.SIGSTOP)
    yield "paused"
    victim.signal(signal.SIGCONT)


def pause_engine(cluster: Cluster, victim: Node, choice: random.Random) -> Iterator[str]:
    """Stop the process of an engine for a while."""
    victim.signal(signal.SIGSTOP, engine=True)
    yield "engine paused"
    victim.signal(signal.SIGCONT, engine=True)


def isolate(cluster: Cluster, victim: Node, choice: random.Random) -> Iterator[str]:
    """Cut a node off from all others; its clients still reach it."""
    others = [node.number for node in cluster.nodes if node is not victim]
    cluster.net.cut([(victim.number, other) for other in others])
    cluster.net.cut([(other, victim.number) for other in others])
    yield "isolated"
    cluster.net.heal()


def isolate_all(cluster: Cluster, victim: Node, choice: random.Random) -> Iterator[str]:
    """Cut every link: no node has a quorum."""
    numbers = [node.number for node in cluster.nodes]
    cluster.net.cut([(one, other) for one in numbers for other in numbers if one != other])
    yield "everyone isolated"
    cluster.net.heal()


def one_way(cluster: Cluster, victim: Node, choice: random.Random) -> Iterator[str]:
    """Drop what a node sends to the others, and not what they send to it."""
    cluster.net.cut([(victim.number, node.number) for node in cluster.nodes if node is not victim])
    yield "mute"
    cluster.net.heal()


def one_link(cluster: Cluster, victim: Node, choice: random.Random) -> Iterator[str]:
    """Cut the link between two nodes, which both reach the third."""
    other = choice.choice([node for node in cluster.nodes if node is not victim])
    cluster.net.cut([(victim.number, other.number), (other.number, victim.number)])
    yield f"cut off from {other.name}"
    cluster.net.heal()


def fill_disk(cluster: Cluster, victim: Node, choice: random.Random) -> Iterator[str]:
    """Leave no room on a node's disk; then restart the node, as its operator would."""
    victim.fill_disk()
    yield "disk filled"
    victim.empty_disk()
    victim.kill()
    victim.start()
    victim.wait()


def wipe(cluster: Cluster, victim: Node, choice: random.Random) -> Iterator[str]:
    """Replace a node by an empty one of the same name."""
    victim.kill()
    victim.wipe()
    yield "wiped"
    victim.start()
    victim.wait()


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        kill_node,
        kill_engine,
        pause_node,
        pause_engine,
        isolate,
        isolate_all,
        one_way,
        one_link,
        fill_disk,
        wipe,
    )
}


@contextmanager
def injected(fault: Fault, cluster: Cluster, victim: Node, choice: random.Random) -> Iterator[str]:
    """Have a fault for the time of a `with` block."""
    steps = fault(cluster, victim, choice)
    what = next(steps)
    try:
        yield what
    finally:
        for _ in steps:
            pass


def hold(seconds: float, until: float) -> None:
    """Let a fault last."""
    time.sleep(max(0.0, min(seconds, until - time.monotonic())))

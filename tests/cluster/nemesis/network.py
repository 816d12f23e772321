"""Network namespaces: an address for each node, behind one bridge, with links that can be cut one by one."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

Link = tuple[int, int]
"""From one node to another, by number."""


def why_not() -> str:
    """Return why namespaces cannot be had; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"pyrite{os.getpid()}x"
    try:
        run("netns", "add", name)
        run("netns", "del", name)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces are not to be had: {error}"
    return ""


def run(*words: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Network:
    """Nodes 0, 1, 2... at addresses of their own, which this process reaches, too."""

    def __init__(self, count: int) -> None:
        self._prefix = f"10.{random.randrange(180, 250)}.{random.randrange(1, 255)}"  # not part of the seed
        self._name = f"py{os.getpid() % 100_000}"
        self._count = count
        self._cut: set[Link] = set()

    def address(self, node: int) -> str:
        return f"{self._prefix}.{node + 1}"

    def within(self, node: int) -> tuple[str, ...]:
        """Return the words before a command that runs at a node."""
        return ("ip", "netns", "exec", f"{self._name}n{node}")

    def open(self) -> None:
        bridge = f"{self._name}b"
        run("link", "add", bridge, "type", "bridge")
        run("addr", "add", f"{self._prefix}.254/24", "dev", bridge)
        run("link", "set", bridge, "up")
        for node in range(self._count):
            namespace, outer, inner = (f"{self._name}{kind}{node}" for kind in "noi")
            run("netns", "add", namespace)
            run("link", "add", outer, "type", "veth", "peer", "name", inner)
            run("link", "set", inner, "netns", namespace)
            run("link", "set", outer, "master", bridge, "up")
            run("-n", namespace, "addr", "add", f"{self.address(node)}/24", "dev", inner)
            run("-n", namespace, "link", "set", inner, "up")
            run("-n", namespace, "link", "set", "lo", "up")

    def cut(self, links: Iterable[Link]) -> None:
        """Drop all packets on these links."""
        for source, target in links:
            self._route("add", source, target)
            self._cut.add((source, target))

    def heal(self) -> None:
        """Mend all links."""
        for source, target in self._cut:
            self._route("del", source, target)
        self._cut.clear()

    def _route(self, action: str, source: int, target: int) -> None:
        run("-n", f"{self._name}n{source}", "route", action, "blackhole", f"{self.address(target)}/32")

    def close(self) -> None:
        for node in range(self._count):
            subprocess.run(["ip", "netns", "del", f"{self._name}n{node}"], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self._name}b"], capture_output=True)


@contextmanager
def network(count: int) -> Iterator[Network]:
    net = Network(count)
    try:
        net.open()
        yield net
    finally:
        net.close()

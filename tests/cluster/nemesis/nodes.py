"""Nodes as processes, each at its own address and with a disk of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.nemesis.network import Network, network
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until

DISK = 700
"""MiB of the disk of a node."""
READY_TIME = 90.0
"""Seconds for a restarted node to be ready, on a machine that does much else."""


class Node:
    """A node with an embedded engine."""

    def __init__(self, net: Network, number: int, count: int, folder: Path) -> None:
        self.number = number
        self.name = "abcde"[number]
        self.address = net.address(number)
        self.disk = folder / self.name
        self.data = self.disk / "data"
        self.config = folder / f"{self.name}.toml"
        self._within = net.within(number)
        self.process: BrokerProcess | None = None
        self._logs: list[list[str]] = []
        routes = [f"{net.address(other)}:6222" for other in range(count)]
        self.config.write_text(
            f'data = "{self.data}"\n'
            f'listen = ["mqtt://{self.address}:1883", "http://{self.address}:8080"]\n'
            "[access]\nanonymous = true\n"
            "[limits]\nmax_queued_messages = 1000000\n"
            "[[stream]]\nname = 'default'\nsegment_bytes = 1000000\n"
            f'[cluster]\nname = "x"\nnode = "{self.name}"\nroutes = {json.dumps(routes)}\n'
            f'listen = "{routes[number]}"\nsecret = "nemesis"\nkeep_bytes = 200000000\n'
        )
        self.disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "none", self.disk], check=True)

    def start(self) -> None:
        """Start the process; `wait` returns when it serves clients."""
        self.process = BrokerProcess("--config", str(self.config), before=self._within, wait=False)
        self._logs.append(self.process.log)

    def wait(self) -> None:
        assert self.process is not None
        self.process.wait_until_ready()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.process.poll() is None

    @property
    def log(self) -> list[str]:
        """What all processes of this node have logged."""
        return [line for lines in self._logs for line in lines]

    def signal(self, number: int, engine: bool = False) -> None:
        """Send a signal to the node, or to its engine."""
        assert self.process is not None
        pid = self.process.process.pid
        if engine:
            pid = int((self.data / "engine" / "nats-server.pid").read_text())
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def kill(self) -> None:
        """Kill the node, and with it its engine, and wait for the end."""
        assert self.process is not None
        self.process.process.kill()
        self.process.stop()

    def stop(self) -> None:
        if self.process is not None and self.process.process.poll() is None:
            self.process.process.send_signal(signal.SIGCONT)
            self.process.stop()

    def wipe(self) -> None:
        """Remove everything that the node has stored."""
        shutil.rmtree(self.data)

    def fill_disk(self) -> None:
        """Leave no room on the node's disk."""
        with open(self.disk / "filler", "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(1024 * 1024))
            except OSError:
                pass
        with open(self.disk / "filler", "ab", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                pass

    def empty_disk(self) -> None:
        (self.disk / "filler").unlink(missing_ok=True)

    def flip_bit(self, place: float) -> str:
        """Flip a bit in the largest file of the log; return its name."""
        files = sorted((self.data / "streams").rglob("*.*"), key=lambda file: file.stat().st_size)
        file = files[-1]
        at = int(place * file.stat().st_size)
        with open(file, "r+b") as content:
            content.seek(at)
            (byte,) = content.read(1)
            content.seek(at)
            content.write(bytes((byte ^ 16,)))
        return f"{file.relative_to(self.data)} at {at:,}"

    def state(self) -> dict[str, Any] | None:
        """Return the state of the cluster as this node sees it; None if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.address}:8080/api/v1/cluster", timeout=3) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, ValueError):
            return None


class Cluster:
    """All nodes, and the network between them."""

    def __init__(self, net: Network, folder: Path, count: int) -> None:
        self.net = net
        self.nodes = [Node(net, number, count, folder) for number in range(count)]

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait()

    def settle(self) -> None:
        """Wait until all nodes are there, have a quorum, and have applied the same groups."""
        wait_until(self._is_settled, "all nodes are equal", READY_TIME)

    def _is_settled(self) -> bool:
        states = [node.state() for node in self.nodes]
        found = [state for state in states if state is not None]
        if len(found) < len(states) or not all(state["has_quorum"] for state in found):
            return False
        places = {
            (one["sequence"], one["hash"])
            for state in found
            for one in state["nodes"]
            if one["name"] == state["node"]
        }
        return len(places) == 1 and all(one["is_here"] for state in found for one in state["nodes"])


@contextmanager
def cluster(folder: Path, count: int = 3) -> Iterator[Cluster]:
    """A running cluster in namespaces."""
    with network(count) as net:
        nodes: Cluster | None = None
        try:
            nodes = Cluster(net, folder, count)
            nodes.start()
            yield nodes
        finally:
            for node in [] if nodes is None else nodes.nodes:
                node.stop()
            for disk in folder.iterdir():
                if disk.is_dir():
                    subprocess.run(["umount", "-l", disk], check=False)

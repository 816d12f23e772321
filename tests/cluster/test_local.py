"""`pyrite cluster local`: three real nodes with real engines, and MQTT clients on all of them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from pyrite.client import BlockingClient
from pyrite.client.errors import ConnectError
from tests.support.waiting import wait_until

pytest.importorskip("nats")
pytestmark = pytest.mark.xdist_group("cluster")

READY_TIME = 60.0
"""Seconds to be ready while other tests run; alone it takes about 8."""


class Local:
    """A running `pyrite cluster local`."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "pyrite", "cluster", "local", "--data", str(folder)]
        began = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.rows: list[list[str]] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if re.match(r"│ \d ", line):
                self.rows.append([cell.strip() for cell in line.strip("│\n ").split("│")])
            if line.startswith("└"):
                break
        self.seconds = time.monotonic() - began
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def mqtt(self, node: int) -> str:
        return f"mqtt://{self.rows[node][1]}"

    def http(self, node: int) -> str:
        return f"http://{self.rows[node][5]}"

    def node(self, number: int) -> psutil.Process:
        """Return the process of a node."""
        name = f"node-{number + 1}.toml"
        return next(one for one in self.family if one.is_running() and one.cmdline()[-1].endswith(name))

    def get(self, node: int, path: str) -> Any:
        with urllib.request.urlopen(self.http(node) + path, timeout=10) as answer:
            return json.load(answer)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=60)
        assert "Traceback" not in errors
        assert "internal error" not in errors
        return self.process.returncode


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    cluster = Local(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster
        assert cluster.stop() == 0, "Ctrl-C is how it ends"
        assert [one for one in cluster.family if one.is_running() and one.status() != "zombie"] == []
    finally:
        for one in cluster.family:
            if one.is_running():
                one.kill()
        cluster.process.kill()
        cluster.process.communicate()


def test_three_nodes_are_ready_and_their_ports_are_shown(local: Local) -> None:
    assert [row[0] for row in local.rows] == ["1", "2", "3"]
    assert all(len(row) == 6 for row in local.rows)
    assert local.seconds < READY_TIME


def test_a_message_reaches_subscribers_of_all_nodes_in_one_order(local: Local) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(BlockingClient(local.mqtt(node))) for node in range(3)]
        queues = [stack.enter_context(client.subscribe("order/#", qos=1)) for client in clients]
        for number in range(30):
            clients[number % 3].publish("order/x", b"%d" % number, qos=1)
        received = [[messages.get(timeout=20).payload for _ in range(30)] for messages in queues]
    assert received[0] == received[1] == received[2]
    assert sorted(map(int, received[0])) == [*range(30)]
    path = "/api/v1/streams/default/messages?filter=order/%23&limit=100"
    pages = [local.get(node, path) for node in range(3)]
    logged = [[(one["offset"], one["topic"], one["payload"]) for one in page["messages"]] for page in pages]
    assert len(logged[0]) == 30
    assert logged[0] == logged[1] == logged[2], "the same messages at the same offsets"


def test_a_retained_message_is_on_every_node(local: Local) -> None:
    with BlockingClient(local.mqtt(0)) as client:
        client.publish("kept/x", b"here", qos=1, retain=True)
    for node in range(3):
        with BlockingClient(local.mqtt(node)) as client, client.subscribe("kept/#") as messages:
            assert messages.get(timeout=20).payload == b"here"


def test_the_state_of_the_cluster_is_shown(local: Local) -> None:
    def equal() -> bool:
        found = local.get(1, "/api/v1/cluster")
        return found["has_quorum"] and len({one["hash"] for one in found["nodes"]}) == 1

    wait_until(equal, "all nodes report the same hash")
    command = [sys.executable, "-m", "pyrite", "cluster", "status", "--url", local.http(1)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "cluster local: quorum; seen by node node-2" in shown.stdout
    assert re.search("│ node-3 +│ yes ", shown.stdout)
    assert shown.stdout.count("leader") == 1
    with urllib.request.urlopen(local.http(2) + "/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    assert "\npyrite_cluster_quorum 1\n" in metrics
    assert "\npyrite_cluster_nodes 3\n" in metrics


def _lets_in(url: str) -> bool:
    try:
        with BlockingClient(url):
            return True
    except ConnectError:
        return False


def test_a_client_whose_node_is_killed_goes_on_at_another(local: Local) -> None:
    resumed: list[bool] = []
    options: dict[str, Any] = {"client_id": "wanderer", "session_expiry": 600}
    with (
        BlockingClient(local.mqtt(0)) as other,
        other.subscribe("after/#", qos=1) as messages,
        BlockingClient(local.mqtt(2), reconnect=False, **options) as victim,
    ):
        victim.subscribe("wander/#", qos=1)
        local.node(2).kill()
        other.publish("wander/x", b"while away", qos=1)
        wait_until(lambda: _lets_in(local.mqtt(1)), "another engine leads, if that of the killed node did")
        with BlockingClient(local.mqtt(1), clean_start=False, on_connect=resumed.append, **options) as again:
            again.publish("after/x", b"on", qos=1)
            assert messages.get(timeout=20).payload == b"on"
    assert resumed == [True], "without waiting for the end of the node's lease"

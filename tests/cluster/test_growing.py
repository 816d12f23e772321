"""A single node in a cluster of its own that grows to three."""

from __future__ import annotations

import shutil
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyrite.cli.cluster.local import write_configurations
from pyrite.client import BlockingClient
from tests.support.process import BrokerProcess

pytest.importorskip("nats")
pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.slow]


def test_one_node_grows_to_three_with_everything_it_has(tmp_path: Path) -> None:
    (alone,) = write_configurations(tmp_path / "one", 1)
    data = Path(tomllib.loads(alone.read_text())["data"])
    with BrokerProcess("--config", str(alone)) as broker, BlockingClient(broker.urls[0]) as client:
        for number in range(5):
            client.publish(f"kept/{number}", b"before", qos=1, retain=True)
    grown = write_configurations(tmp_path / "three", 3)
    for file in grown:
        target = Path(tomllib.loads(file.read_text())["data"])
        shutil.copytree(data, target, ignore=shutil.ignore_patterns("engine"))
    # The cluster of one node has the same name as that of three: it is the same cluster.
    with ExitStack() as stack:
        nodes = [BrokerProcess("--config", str(file), wait=False) for file in grown]
        for node in nodes:
            stack.callback(node.stop)
        for node in nodes:
            node.wait_until_ready()
        for number, node in enumerate(nodes):
            with BlockingClient(node.urls[0]) as client:
                client.publish(f"kept/{5 + number}", b"after", qos=1, retain=True)
                with client.subscribe("kept/#") as messages:
                    topics = {messages.get(timeout=20).topic for _ in range(6 + number)}
                assert topics == {f"kept/{one}" for one in range(6 + number)}

"""docs/operations.md describes every metric of a running broker, and no others."""

from __future__ import annotations

import re
import time
from pathlib import Path

import httpx

from pyrite.client import BlockingClient
from pyrite.http.metrics import CPU_HELP, CPU_NAME
from pyrite.ipc.api.metrics import COUNTER, GAUGE
from pyrite.server.metric_table import INFO_HELP, INFO_NAME, METRICS, STREAM_METRICS
from tests.support.process import BrokerProcess

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"
PREFIX = "$SYS/broker/"
TABLE = [
    (INFO_NAME, GAUGE, INFO_HELP),
    *((one.name, one.kind, one.help) for one in METRICS if one.name),
    *((one.name, GAUGE, one.help) for one in STREAM_METRICS),
    (CPU_NAME, COUNTER, CPU_HELP),
]
"""All that Prometheus sees: name, kind, and what it is."""


def section(title: str) -> str:
    """Return the text of a section."""
    return DOCUMENT.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def unseen(told: dict[str, re.Pattern[str]], found: set[str]) -> set[str]:
    """Return the rows of the table that have no metric."""
    return {row for row, one in told.items() if not any(map(one.fullmatch, found))}


def test_every_sys_topic_is_documented_and_every_documented_one_exists(tmp_path: Path) -> None:
    rows = re.findall(r"^\| `([^`]+)` \| .+ \|$", section("$SYS"), re.MULTILINE)
    told = {
        row: re.compile(re.escape(row).replace("NAME", "[^/]+").replace("MINUTES", r"(?:1|5|15)min"))
        for row in rows
    }
    assert len(told) == len(rows) > 40
    (tmp_path / "pyrite.toml").write_text("[mqtt]\nsys_interval = 0.1\n")
    listen = "--listen=mqtt://127.0.0.1:0"
    found: set[str] = set()
    with (
        BrokerProcess("--config=pyrite.toml", "--data=data", listen, cwd=tmp_path) as broker,
        BlockingClient(broker.urls[0]) as client,
        client.subscribe(f"{PREFIX}#") as messages,
    ):
        client.publish("a", b"x", qos=1)
        until = time.monotonic() + 20
        while unseen(told, found) and time.monotonic() < until:
            found.add(messages.get(timeout=10).topic.removeprefix(PREFIX))
        for _ in range(5 * len(rows)):  # a few more updates, in case more metrics appear
            found.add(messages.get(timeout=10).topic.removeprefix(PREFIX))
    assert {topic for topic in found if not any(one.fullmatch(topic) for one in told.values())} == set()
    assert unseen(told, found) == set()


def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    rows = re.findall(r"^\| `pyrite_(\w+)` \| (\w+) \| (.+) \|$", section("Metrics"), re.MULTILINE)
    assert rows == TABLE


def test_a_broker_publishes_the_documented_metrics_and_alarms_use_them(tmp_path: Path) -> None:
    listen = "--listen=http://127.0.0.1:0"
    (tmp_path / "pyrite.toml").write_text("[mqtt]\nsys_interval = 0.1\n")
    # Only nodes have those of the cluster: tests/cluster.
    wanted = {f"pyrite_{name}" for name, _, _ in TABLE if not name.startswith("cluster_")}
    found: set[str] = set()
    with BrokerProcess("--config=pyrite.toml", "--data=data", listen, cwd=tmp_path) as broker:
        until = time.monotonic() + 20  # some were missing when $SYS was first published
        while found != wanted and time.monotonic() < until:
            text = httpx.get(f"{broker.urls[0]}/metrics", timeout=10).text
            found = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert found == wanted
    named = set(re.findall(r"pyrite_\w+", section("When something is wrong")))
    assert len(named) > 5
    assert named <= wanted

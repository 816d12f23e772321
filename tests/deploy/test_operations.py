"""docs/operations.md says what every figure of a running broker means, and of no others."""

from __future__ import annotations

import re
import time
from pathlib import Path

from pyrite.client import BlockingClient
from tests.support.process import BrokerProcess

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"
PREFIX = "$SYS/broker/"


def unseen(told: dict[str, re.Pattern[str]], found: set[str]) -> set[str]:
    """Return the rows of the table that nothing was found for."""
    return {row for row, one in told.items() if not any(map(one.fullmatch, found))}


def test_every_topic_is_in_the_table_and_the_other_way_round(tmp_path: Path) -> None:
    table = DOCUMENT.read_text().partition("\n## $SYS\n")[2]
    rows = re.findall(r"^\| `([^`]+)` \| .+ \|$", table, re.MULTILINE)
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
        for _ in range(5 * len(rows)):  # some updates more: whatever else there may be
            found.add(messages.get(timeout=10).topic.removeprefix(PREFIX))
    assert {topic for topic in found if not any(one.fullmatch(topic) for one in told.values())} == set()
    assert unseen(told, found) == set()

"""While a broker ingests, merges and drops, and its table process is killed, readers see neither gap nor
duplicate, and no missing file.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from tests.durability.bulk import numbers, publish
from tests.support.children import children
from tests.support.process import BrokerProcess
from tests.support.waiting import let_pass, wait_until

SECONDS = float(os.environ.get("PYRITE_TABLES_SECONDS", "8"))
"""Seconds of load; then it goes on until each kind of commit was seen."""
KEEP = 10.0
CONFIG = f"""
[[stream]]
name = "default"
table = true
table_delay = 1
snapshots_keep = {KEEP}
retention_bytes = 12000000
segment_bytes = 4000000
"""

Read = Callable[[Table, Snapshot], dict[str, int]]


def arrow(table: Table, snapshot: Snapshot) -> dict[str, int]:
    found = table.scan(selected_fields=("offset",), snapshot_id=snapshot.snapshot_id).to_arrow()["offset"]
    return {"rows": len(found), "unique": len(found.unique()), **pc.min_max(found).as_py()}


def by_polars(table: Table, snapshot: Snapshot) -> dict[str, int]:
    offset = polars.col("offset")
    frame = polars.scan_iceberg(table, snapshot_id=snapshot.snapshot_id).select(
        offset.len().alias("rows"),
        offset.n_unique().alias("unique"),
        offset.min().alias("min"),
        offset.max().alias("max"),
    )
    (found,) = frame.collect().to_dicts()
    return found


def by_duckdb(table: Table, snapshot: Snapshot) -> dict[str, int]:
    query = 'SELECT count(*), count(DISTINCT "offset"), min("offset"), max("offset") FROM m'
    with table.scan(snapshot_id=snapshot.snapshot_id).to_duckdb("m") as database:
        found = database.execute(query).fetchone()
    assert found is not None
    return dict(zip(("rows", "unique", "min", "max"), found, strict=True))


def filtered(table: Table, snapshot: Snapshot) -> dict[str, int]:
    """Read in two halves, by a filter on the offset that skips files."""
    all_of_it = arrow(table, snapshot)
    middle = (all_of_it["min"] + all_of_it["max"]) // 2
    rows = 0
    for row_filter in (f"offset < {middle}", f"offset >= {middle} and topic in ('t/0', 't/1', 't/2', 'no')"):
        scan = table.scan(row_filter, ("offset",), snapshot_id=snapshot.snapshot_id)
        rows += scan.to_arrow().num_rows
    return all_of_it | {"rows": rows}


def slowly(table: Table, snapshot: Snapshot) -> dict[str, int]:
    """Open the scan, and read long after; the snapshot may have been replaced meanwhile."""
    batches = table.scan(
        selected_fields=("offset",), snapshot_id=snapshot.snapshot_id
    ).to_arrow_batch_reader()
    time.sleep(KEEP / 3)
    found = batches.read_all()["offset"]
    return {"rows": len(found), "unique": len(found.unique()), **pc.min_max(found).as_py()}


class Readers:
    """Threads that read the table over and over, and check what they found."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.checks: dict[str, int] = {}
        self.errors: list[str] = []
        self.operations: dict[int, str] = {}
        self._threads: list[threading.Thread] = []

    def start(self, catalog: Catalog, read: Read) -> None:
        self._threads.append(threading.Thread(target=self._run, args=(catalog, read)))
        self._threads[-1].start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self, catalog: Catalog, read: Read) -> None:
        while not self.done.is_set():
            try:
                table = catalog.load_table("pyrite.default")
                for one in table.metadata.snapshots:
                    assert one.summary is not None
                    self.operations[one.snapshot_id] = one.summary.operation.value
                self._check(table, self._pick(table), read)
            except Exception as error:
                self.errors.append(f"{read.__name__}: {error!r}")
            self.checks[read.__name__] = self.checks.get(read.__name__, 0) + 1

    def _pick(self, table: Table) -> Snapshot:
        """Return the current snapshot, or one that was replaced less than half of its time ago."""
        found = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
        since = (time.time() - KEEP / 2) * 1_000
        fresh = [one for one, after in pairwise(found) if after.timestamp_ms > since]
        return random.choice([*fresh, found[-1]])

    def _check(self, table: Table, snapshot: Snapshot, read: Read) -> None:
        assert snapshot.summary is not None
        rows = int(snapshot.summary["total-records"] or 0)
        if rows:
            found = read(table, snapshot)
            expected = {"rows": rows, "unique": rows, "min": found["min"], "max": found["min"] + rows - 1}
            assert found == expected, f"{snapshot.summary.operation} {found}"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "pyrite.toml").write_text(CONFIG)
    listen = ("--listen=mqtt://127.0.0.1:0", "--listen=http://127.0.0.1:0")
    with BrokerProcess(
        "--config", str(tmp_path / "pyrite.toml"), "--data", str(tmp_path / "data"), *listen
    ) as broker:
        yield broker


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.filterwarnings("ignore")  # of Polars, about a planner that is not installed
def test_readers_see_neither_gap_nor_duplicate(broker: BrokerProcess, tmp_path: Path) -> None:
    readers = Readers()
    sent = 0

    def ingest() -> None:
        nonlocal sent
        while not readers.done.is_set():
            count = random.choice([10, 1_000, 10_000])
            publish(broker.port(0), f"t/{random.randrange(3)}", numbers(sent, sent + count, 60))
            sent += count
            time.sleep(random.choice([0, 0.05, 0.3]))

    ingesting = threading.Thread(target=ingest)
    ingesting.start()
    rest = load_catalog("pyrite", type="rest", uri=f"{broker.urls[1]}/iceberg")
    wait_until(lambda: _rows(rest) > 0, "the table has messages")
    sql = SqlCatalog("pyrite", uri=f"sqlite:///{tmp_path}/data/tables/catalog.db")
    for catalog, read in (
        (rest, arrow),
        (sql, filtered),
        (rest, by_polars),
        (sql, by_duckdb),
        (rest, slowly),
    ):
        readers.start(catalog, read)
    let_pass(SECONDS, "the broker is under load")
    os.kill(_tables_process(broker), signal.SIGKILL)  # it is started again, and repairs what it left
    try:
        every = {"append", "replace", "delete"}
        wait_until(lambda: every <= set(readers.operations.values()), "all kinds of commits", 60)
    finally:
        readers.done.set()
        ingesting.join()
    readers.join()
    print(f"{sent} messages, {readers.checks}, {sorted(readers.operations.values())}")
    assert readers.errors == []
    assert len(readers.checks) == 5
    end = f"{sent}"
    wait_until(lambda: _summary(rest)["pyrite.end-offset"] == end, "the table has the last message", 60)
    internal = [line for line in broker.log if "Traceback" in line]
    assert internal == []


def _summary(catalog: Catalog) -> dict[str, Any]:
    current = catalog.load_table("pyrite.default").current_snapshot()
    summary = None if current is None else current.summary
    return {} if summary is None else dict(summary.additional_properties)


def _rows(catalog: Catalog) -> int:
    try:
        return int(_summary(catalog).get("total-records", 0))
    except Exception:  # the table is being made
        return 0


def _tables_process(broker: BrokerProcess) -> int:
    def found() -> list[int]:
        commands = {one: Path(f"/proc/{one}/cmdline").read_bytes() for one in children(broker)}
        return [one for one, command in commands.items() if b"pyrite.tables" in command]

    return wait_until(found, "the process that keeps the tables runs")[0]

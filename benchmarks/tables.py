"""Streams as Iceberg tables: `python -m benchmarks.tables`.

Registration is measured in process, in CPU seconds and bytes, over segments that exist: 100,000 messages of
64 bytes each. The delay is that of a real broker, from the acknowledgement of a message to its row in the
table, through the REST catalog; most of it is `table_delay` itself.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

SEGMENTS = 300
MESSAGES = 100_000
DELAYS = 8
CONFIG = '[[stream]]\nname = "default"\ntable = true\ntable_delay = {delay}\n'


def segment(folder: Path, base: int) -> None:
    """Write a Parquet segment."""
    from pyrite.storage import parquet
    from pyrite.storage.files import Files
    from pyrite.storage.schema import SCHEMA

    random = np.random.default_rng(base)
    offsets = np.arange(base, base + MESSAGES)
    columns = {
        "offset": offsets,
        "timestamp": pa.array(1_800_000_000_000_000 + offsets, pa.timestamp("us", "UTC")),
        "topic": [f"plant/{number % 1_000}/state" for number in range(MESSAGES)],
        "payload": [random.bytes(64) for _ in range(MESSAGES)],
        "qos": pa.repeat(pa.scalar(1, pa.int8()), MESSAGES),
        "retain": pa.repeat(pa.scalar(False), MESSAGES),
    }
    arrays = [
        pa.array(columns[one.name], one.type) if one.name in columns else pa.nulls(MESSAGES, one.type)
        for one in SCHEMA
    ]
    rows = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    parquet.write(Files(), folder / f"{base:020}.parquet", [rows], base + MESSAGES, "zstd")


def registration(data: Path) -> None:
    """Register segments one by one; print what each takes, with few snapshots and with many."""
    from pyrite.tables.keeper import Keeper
    from pyrite.tables.place import Place

    folder = data / "streams" / "default"
    folder.mkdir(parents=True)
    keeper = Keeper(data, "", {"default": 3_600.0})
    keeper.work("default")
    metadata = Place(data).folder / "default" / "metadata"
    took, written = [], []
    for number in range(SEGMENTS):
        segment(folder, number * MESSAGES)
        before = {one.name for one in metadata.iterdir()}
        began = time.process_time()
        keeper.work("default")
        took.append(time.process_time() - began)
        written.append(sum(one.stat().st_size for one in metadata.iterdir() if one.name not in before))
    for name, part in (("the first 20", slice(0, 20)), ("the last 20", slice(-20, None))):
        cpu, size = statistics.median(took[part]), statistics.median(written[part])
        print(
            f"registration of a segment, {name} of {SEGMENTS}: {cpu:.3f} s of CPU, {size:,.0f} bytes written"
        )
    data_bytes = sum(one.stat().st_size for one in folder.glob("*.parquet"))
    print(f"the segments: {data_bytes / SEGMENTS:,.0f} bytes each, none written twice")


def delays(folder: Path, delay: float) -> None:
    """Print how long after its acknowledgement a message is in the table."""
    from pyiceberg.catalog import load_catalog
    from tests.support.process import BrokerProcess

    from pyrite.client import BlockingClient

    (folder / "pyrite.toml").write_text(CONFIG.format(delay=delay))
    arguments = ("--config", str(folder / "pyrite.toml"), "--data", str(folder / "data"))
    listen = ("--listen=mqtt://127.0.0.1:0", "--listen=http://127.0.0.1:0")
    found = []
    with BrokerProcess(*arguments, *listen) as broker, BlockingClient(broker.urls[0]) as client:
        catalog = load_catalog("pyrite", type="rest", uri=f"{broker.urls[1]}/iceberg")
        for number in range(DELAYS):
            client.publish("a", b"x", qos=1)
            began = time.monotonic()
            while _rows(catalog) <= number:
                time.sleep(0.05)
            found.append(time.monotonic() - began)
    middle, longest = statistics.median(found), max(found)
    print(f"table delay with table_delay = {delay:g}: median {middle:.1f} s, longest {longest:.1f} s")


def _rows(catalog: object) -> int:
    from pyiceberg.exceptions import ServiceUnavailableError

    try:
        current = catalog.load_table("pyrite.default").current_snapshot()  # type: ignore[attr-defined]
    except ServiceUnavailableError:  # it is being made
        return 0
    return 0 if current is None else int(current.summary["total-records"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        registration(Path(folder))
    for delay in (1.0, 10.0):
        with tempfile.TemporaryDirectory() as folder:
            delays(Path(folder), delay)


if __name__ == "__main__":
    main()

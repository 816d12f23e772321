"""The table of a stream follows its segments, whatever happens to either."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from pyrite.storage.options import StreamOptions
from pyrite.tables import catalog
from pyrite.tables.keeper import Keeper
from tests.support.durable import Machine

KEEP = 100.0


class Tables:
    """A broker on a simulated clock, and the process that keeps its tables."""

    def __init__(self, folder: Path, location: str = "", **options: Any) -> None:
        streams = [StreamOptions(table=True, table_delay=5.0, segment_bytes=10_000_000, **options)]
        self.machine = Machine(folder, streams)
        self.location = location
        self.uptime = 0.0
        self.restart()

    @property
    def data(self) -> Path:
        return self.machine.data

    @property
    def folder(self) -> Path:
        return self.data / "tables" / "default"

    def restart(self) -> None:
        """Start another process that keeps the tables."""
        self.keeper = Keeper(self.data, self.location, {"default": KEEP}, uptime=lambda: self.uptime)

    def publish(self, *payloads: bytes) -> None:
        client = self.machine.core.connect("writer")
        for payload in payloads:
            client.publish("a/b", payload, qos=1)
        self.machine.core.flush()

    def seal(self, *payloads: bytes) -> None:
        """Publish messages, and let their segment be sealed and become Parquet."""
        self.publish(*payloads)
        self.machine.tick(6.0)
        self.machine.tick(3.0)

    def work(self) -> None:
        self.keeper.work("default")
        assert not self.keeper._failures

    def load(self) -> Table:
        """Load the table as any reader does."""
        found = SqlCatalog("pyrite", uri=f"sqlite:///{self.data}/tables/catalog.db")
        return found.load_table("pyrite.default")


@pytest.fixture
def tables(folder: Path) -> Tables:
    return Tables(folder)


def rows(table: Table, **asked: Any) -> list[bytes]:
    found = table.scan(**asked).to_arrow().sort_by("offset")
    offsets = found["offset"].to_pylist()
    assert offsets == list(range(offsets[0], offsets[0] + len(offsets))) if offsets else True
    payloads: list[bytes] = found["payload"].to_pylist()
    return payloads


def operations(table: Table) -> list[str]:
    found = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    return [one.summary.operation.value for one in found if one.summary is not None]


def segments(tables: Tables) -> list[Path]:
    return sorted((tables.data / "streams" / "default").glob("*.parquet"))


def links(tables: Tables) -> set[str]:
    return set(os.listdir(tables.folder / "data"))


def test_a_sealed_segment_is_appended_without_being_copied(tables: Tables) -> None:
    tables.publish(b"x")
    tables.work()
    assert rows(tables.load()) == []
    tables.seal(b"y", b"z")
    tables.work()
    table = tables.load()
    assert rows(table) == [b"x", b"y", b"z"]
    assert operations(table) == ["append"]
    (segment,) = segments(tables)
    assert (tables.folder / "data" / segment.name).samefile(segment)


def test_all_columns_of_a_message_are_in_the_table(tables: Tables) -> None:
    tables.seal(b"x")
    tables.work()
    (row,) = tables.load().scan().to_arrow().to_pylist()
    (stored,) = pq.read_table(segments(tables)[0]).to_pylist()
    assert row.pop("user_properties") == []  # pyiceberg shows an absent list as an empty one
    assert stored.pop("user_properties") is None
    assert row == stored
    assert row["topic"] == "a/b"
    assert row["client_id"] == "writer"


def test_merging_replaces_files_and_changes_no_row(tables: Tables) -> None:
    for number in range(2):
        tables.seal(b"%d" % number)
        tables.work()
    before = tables.load()
    assert operations(before) == ["append", "append"]
    tables.machine.tick(3.0)  # both are in the table, so they are merged
    tables.work()
    table = tables.load()
    assert operations(table) == ["append", "append", "replace"]
    assert rows(table) == rows(before) == [b"0", b"1"]
    assert len(segments(tables)) == 1
    assert catalog.summary(_metadata(tables)).files == 1


def test_segments_wait_for_their_table_before_they_are_merged(tables: Tables) -> None:
    for number in range(4):
        tables.seal(b"%d" % number)
    assert len(segments(tables)) == 4
    tables.work()
    tables.machine.tick(3.0)
    assert len(segments(tables)) == 1


def test_retention_deletes_rows_and_old_snapshots_still_have_them(folder: Path) -> None:
    tables = Tables(folder, retention_age=60.0)
    tables.seal(b"old")
    tables.work()
    tables.machine.tick(55.0)
    tables.seal(b"new")
    tables.work()
    table = tables.load()
    assert operations(table)[-1] in ("delete", "append")
    assert rows(table) == [b"new"]
    first = min(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    assert rows(table, snapshot_id=first.snapshot_id) == [b"old"]
    assert not any(b"old" in path.read_bytes() for path in segments(tables))


def test_files_go_when_the_snapshots_that_refer_to_them_expire(tables: Tables) -> None:
    for number in range(2):
        tables.seal(b"%d" % number)
        tables.work()
    tables.machine.tick(3.0)
    tables.work()
    tables.work()
    assert len(links(tables)) == 3
    tables.uptime += KEEP - 1
    tables.work()
    assert len(links(tables)) == 3, "a reader may have begun before the snapshot was replaced"
    tables.uptime += 2
    tables.work()
    table = tables.load()
    assert operations(table) == ["replace"]
    assert rows(table) == [b"0", b"1"]
    assert links(tables) == {one.name for one in segments(tables)}
    assert len(list(tables.folder.glob("metadata/snap-*"))) == 1


def test_files_stay_while_one_retained_snapshot_refers_to_them(tables: Tables) -> None:
    for number in range(2):
        tables.seal(b"%d" % number)
        tables.work()
    tables.work()  # the first snapshot was replaced now,
    tables.uptime += KEEP * 0.6
    tables.machine.tick(3.0)
    tables.work()
    tables.work()  # the second now
    tables.uptime += KEEP * 0.6
    tables.work()
    table = tables.load()
    assert operations(table) == ["append", "replace"]
    assert len(links(tables)) == 3
    second = min(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    assert rows(table, snapshot_id=second.snapshot_id) == [b"0", b"1"]


def test_a_snapshot_of_an_idle_stream_is_kept_when_it_is_replaced_at_last(tables: Tables) -> None:
    tables.seal(b"0")
    tables.work()
    before = tables.load()
    tables.uptime += 10 * KEEP
    tables.seal(b"1")
    tables.work()
    tables.machine.tick(3.0)
    tables.work()
    assert len(segments(tables)) == 1
    assert rows(before) == [b"0"], "the reader began just before"


@pytest.mark.parametrize("reached", ["linked", "metadata written"])
def test_what_a_crash_left_behind_is_repaired_at_the_start(
    tables: Tables, reached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.seal(b"0")
    tables.work()
    tables.seal(b"1")

    def crash(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if reached == "linked":
            patch.setattr("pyrite.tables.table.StreamTable._commit", crash)
        else:
            patch.setattr(SqlCatalog, "commit_table", _write_and_crash)
        with pytest.raises(KeyboardInterrupt):
            tables.keeper.work("default")
    assert len(links(tables)) == 2
    assert rows(tables.load()) == [b"0"]
    tables.restart()
    tables.work()
    table = tables.load()
    assert rows(table) == [b"0", b"1"]
    assert operations(table) == ["append", "append"]
    referred = {one.metadata_file for one in table.metadata.metadata_log} | {table.metadata_location}
    assert len(list(tables.folder.glob("metadata/*.json"))) == len(referred)


def _write_and_crash(self: SqlCatalog, table: Table, requirements: Any, updates: Any) -> None:
    staged = self._update_and_stage_table(table, table.name(), requirements, updates)
    self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
    raise KeyboardInterrupt


def _damage_catalog(tables: Tables) -> None:
    (tables.data / "tables" / "catalog.db").write_bytes(b"x" * 5_000)


def _damage_metadata(tables: Tables) -> None:
    Path(tables.load().metadata_location.removeprefix("file://")).write_bytes(b"{")


def _remove_link(tables: Tables) -> None:
    (tables.folder / "data" / next(iter(links(tables)))).unlink()


def _swap_link(tables: Tables) -> None:
    link = tables.folder / "data" / next(iter(links(tables)))
    data = link.read_bytes()
    link.unlink()
    link.write_bytes(data[:-100] + bytes(100))


def _move(tables: Tables) -> None:
    tables.location = f"file://{tables.data}/../{tables.data.name}"


@pytest.mark.parametrize("harm", [_damage_catalog, _damage_metadata, _remove_link, _swap_link, _move])
def test_a_table_that_does_not_fit_is_made_anew(tables: Tables, harm: Callable[[Tables], None]) -> None:
    tables.seal(b"0")
    tables.work()
    tables.seal(b"1")
    tables.work()
    before = tables.load().metadata.table_uuid
    harm(tables)
    tables.restart()
    tables.work()
    table = tables.load()
    assert rows(table) == [b"0", b"1"]
    assert table.metadata.table_uuid != before
    if harm is _move:
        assert table.location() == f"{tables.location}/tables/default"


def test_a_copy_of_the_folder_without_hard_links_goes_on(tables: Tables) -> None:
    tables.seal(b"0")
    tables.work()
    before = tables.load().metadata.table_uuid
    for name in links(tables):
        link = tables.folder / "data" / name
        data = link.read_bytes()
        link.unlink()
        link.write_bytes(data)
    tables.restart()
    tables.work()
    assert tables.load().metadata.table_uuid == before


def test_what_another_program_writes_is_undone(tables: Tables) -> None:
    tables.seal(b"0")
    tables.work()
    table = tables.load()
    table.append(table.scan().to_arrow())
    tables.seal(b"1")
    tables.work()  # it finds that the table has changed
    tables.work()
    assert rows(tables.load()) == [b"0", b"1"]


def test_the_delay_is_the_age_of_what_is_not_in_the_table(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: tables.machine.wall())
    reader = tables.machine.journal.log.readers_here[tables.machine.journal.streams[0]]
    tables.seal(b"0")
    assert catalog.delay(reader, 0) == pytest.approx(9.0, abs=0.1)
    tables.work()
    end = catalog.summary(_metadata(tables)).end
    assert (end, catalog.delay(reader, end)) == (1, 0.0)


def _metadata(tables: Tables) -> bytes:
    found = catalog.entry(tables.data, "default")
    assert found is not None
    assert json.loads(found.metadata)["location"] == f"file://{tables.data}/tables/default"
    return found.metadata

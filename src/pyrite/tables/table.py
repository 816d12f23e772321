"""One stream as a table: commits what has changed, expires snapshots, and removes files that none needs."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update.snapshot import ExpireSnapshots, _MergeAppendFiles, _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT
from sqlalchemy.exc import SQLAlchemyError

from pyrite.errors import PyriteError
from pyrite.storage.files import Files
from pyrite.storage.folder import LINKS, links_of
from pyrite.storage.parquet import ParquetSegment
from pyrite.storage.schema import SCHEMA
from pyrite.storage.stream import SEGMENT, StreamReader
from pyrite.tables.catalog import Summary as Holds
from pyrite.tables.durable import make_folders
from pyrite.tables.place import END, NAMESPACE, Place
from pyrite.tables.steps import Held, Step, steps

logger = logging.getLogger(__name__)

PROPERTIES = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "commit.retry.num-retries": "0",  # if another program has written, the table is compared anew
    "commit.manifest.min-count-to-merge": "32",
    # Segments hold no statistics of payloads; those of topics let a reader skip files.
    "write.metadata.metrics.column.payload": "none",
    "write.metadata.metrics.column.user_properties": "none",
    "write.metadata.metrics.column.topic": "truncate(64)",
}
MAX_EXPIRY_DELAY = 60.0
"""Seconds that expired snapshots wait for another change to be committed with."""
_ENDING = 64 * 1024
"""Bytes at the end of a segment that are compared: its footer, and checksums of row groups."""
_SETTLED = 50_000_000
"""Nanoseconds within which two changes of a folder may have the same modification time."""


class _Unlike(PyriteError):
    """A table does not fit its stream: it must be made anew."""


class _Found(NamedTuple):
    """The sealed segments of a stream, and where the stream begins."""

    first: int
    segments: dict[str, ParquetSegment]


class _Changed(_OverwriteFiles):
    """A snapshot with another operation than overwrite, which pyiceberg cannot state."""

    stated = Operation.OVERWRITE

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        found = super()._summary(snapshot_properties)
        return Summary(operation=self.stated, **found.additional_properties)


class StreamTable:
    """The table of one stream. One thread uses it."""

    def __init__(
        self,
        catalog: SqlCatalog,
        place: Place,
        folder: Path,
        keep: float,
        uptime: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog = catalog
        self._name = folder.name
        self._reader = StreamReader(folder)
        self._uptime = uptime
        self._keep = keep
        """Seconds for which a snapshot is kept after the next one has replaced it."""
        self._location = place.table(self._name)
        self._folder = place.folder / self._name
        self._links = links_of(folder)
        self._files = Files()
        self._table: Table | None = None
        self._held: dict[str, DataFile] = {}
        """The data files of the current snapshot, by name."""
        self._seen = -1
        """The modification time of the stream's folder when it was last compared."""
        self._replaced: dict[int, float] = {}
        """By snapshot, the uptime when this process first saw a later one."""
        self._expired_at = self._uptime()
        self._lists: dict[int, set[str]] = {}
        """By snapshot, its manifests; by manifest, its data files: their names. Both never change."""
        self._manifests: dict[str, set[str]] = {}

    def work(self) -> bool:
        """Commit what has changed; return True if anything has."""
        try:
            if self._table is None:
                self._table = self._open()
            return self._update(self._table)
        except (_Unlike, CommitFailedException) as error:
            logger.warning("table %s: it is compared anew: %s", self._name, error)
            if isinstance(error, _Unlike):
                self._discard()
            self._table = None
            self._seen = -1
            return False
        except BaseException:
            self._table = None  # what was committed is unknown
            self._seen = -1
            raise

    def holds(self) -> Holds:
        """Return what the current snapshot holds."""
        assert self._table is not None
        metadata = self._table.metadata
        current = metadata.current_snapshot()
        size = sum(one.file_size_in_bytes for one in self._held.values())
        rows = sum(one.record_count for one in self._held.values())
        return Holds(rows, len(self._held), size, len(metadata.snapshots), _end(current))

    # Open

    def _open(self) -> Table:
        """Load the table; create it if it is missing or does not fit."""
        identifier = (NAMESPACE, self._name)
        try:
            table = self._catalog.load_table(identifier)
            self._check(table)
        except NoSuchTableError:
            self._discard()
            table = self._create()
        except SQLAlchemyError:
            raise
        except Exception as error:  # whatever damaged metadata causes
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise
            # Of a table that cannot be read, nothing is needed: the segments are there.
            logger.warning("table %s: it is made anew from the segments: %s", self._name, error)
            self._discard()
            table = self._create()
        self._held = _data_files(table)
        self._collect(table)
        return table

    def _create(self) -> Table:
        make_folders(self._files, self._links)
        make_folders(self._files, self._folder / "metadata")
        table = self._catalog.create_table(
            (NAMESPACE, self._name), SCHEMA, location=self._location, properties=PROPERTIES
        )
        mapping = table.schema().name_mapping.model_dump_json()
        with table.transaction() as change:
            change.set_properties({"schema.name-mapping.default": mapping})
        return table

    def _check(self, table: Table) -> None:
        """Raise _Unlike unless a table that was found fits the stream."""
        if table.location() != self._location:
            raise _Unlike(f"its location is {table.location()!r}, not {self._location!r}")
        names = _names(table.schema())
        if names != SCHEMA.names:
            raise _Unlike(f"its columns are {', '.join(names)}")
        segments = self._look().segments
        for name in _data_files(table):
            link = self._links / name
            if not link.exists():
                raise _Unlike(f"the file {name} is missing")
            if not SEGMENT.fullmatch(name):
                raise _Unlike(f"another program has written the file {name}")
            if name in segments and not _same(link, segments[name].path):
                raise _Unlike(f"the file {name} is not the segment of this name")

    def _discard(self) -> None:
        try:
            self._catalog.drop_table((NAMESPACE, self._name))
        except NoSuchTableError:
            pass
        if self._folder.exists():
            shutil.rmtree(self._folder)
        self._held.clear()
        self._lists.clear()
        self._manifests.clear()

    # Update

    def _look(self) -> _Found:
        return self._reader.look(self._sealed)

    def _sealed(self) -> _Found:
        """Return the sealed segments up to the first that is not Parquet yet."""
        segments = self._reader.segments()
        found: dict[str, ParquetSegment] = {}
        for segment in segments:
            if isinstance(segment, ParquetSegment):
                segment.records()  # raises FileNotFoundError if it is gone
                found[segment.path.name] = segment
            elif len(segment.records()):
                break
        return _Found(segments[0].base if segments else 0, found)

    def _update(self, table: Table) -> bool:
        changed = self._reader.folder.stat().st_mtime_ns
        found = None if changed == self._seen else self._look()
        expired = self._expired(table)
        waited = self._uptime() - self._expired_at
        late = bool(expired) and waited > min(MAX_EXPIRY_DELAY, self._keep / 10)
        due = [] if found is None else self._steps(found)
        if due or late:
            assert found is not None or not due
            data_files = self._link(table, found, due)
            self._commit(table, due, found, data_files, expired)
        if time.time_ns() - changed > _SETTLED:
            self._seen = changed
        return bool(due)

    def _steps(self, found: _Found) -> list[Step]:
        held = {name: Held(int(name[:20]), one.record_count) for name, one in self._held.items()}
        wanted = {
            name: held.get(name) or Held(one.base, int(one.records()["count"].sum()))
            for name, one in found.segments.items()
        }
        return list(steps(held, wanted, found.first))

    def _link(self, table: Table, found: _Found | None, due: Iterable[Step]) -> dict[str, DataFile]:
        """Link the segments that are added; return their data files."""
        data_files = {}
        folder = self._links
        for name in (name for step in due for name in step.added):
            assert found is not None
            segment, link = found.segments[name], folder / name
            try:
                os.link(segment.path, link)
            except FileExistsError:  # a crash before the commit; or a retained snapshot refers to it
                if not _same(link, segment.path):
                    raise _Unlike(f"the file {name} is not the segment of this name") from None
            location = f"{self._location}/{LINKS}/{name}"
            data_files[name] = parquet_file_to_data_file(table.io, table.metadata, location)
            data_files[name].spec_id = table.metadata.default_spec_id
        if data_files:
            self._files.sync_folder(folder)
        return data_files

    def _commit(
        self,
        table: Table,
        due: Iterable[Step],
        found: _Found | None,
        data_files: dict[str, DataFile],
        expired: list[int],
    ) -> None:
        """Commit a snapshot for each step, and the end of those that expired, at once."""
        held = dict(self._held)
        end = _end(table.current_snapshot())
        with table.transaction() as change:
            for step in due:
                assert found is not None
                end = max([end, *(found.segments[name].end() for name in step.added)])
                with _producer(change, table, step.operation, {END: str(end)}) as snapshot:
                    for name in step.removed:
                        snapshot.delete_data_file(held.pop(name))
                    for name in step.added:
                        held[name] = data_files[name]
                        snapshot.append_data_file(held[name])
            if expired:
                ExpireSnapshots(change).by_ids(expired).commit()
        self._held = held
        if expired:
            self._expired_at = self._uptime()
            self._collect(table)

    # The end of snapshots

    def _expired(self, table: Table) -> list[int]:
        """Return the snapshots that were replaced long enough ago.

        A reader may have begun just before a snapshot was replaced, so its own age does not matter. The time
        of day, which somebody may set, does not count for what this process saw.
        """
        metadata = table.metadata
        held = {one.snapshot_id for one in metadata.refs.values()}
        now, uptime = time.time(), self._uptime()
        expired = []
        first = not self._replaced
        for one, following in pairwise(_by_age(metadata.snapshots)):
            seen = self._replaced.get(one.snapshot_id)
            if seen is None:
                age = now - following.timestamp_ms / 1000 if first else 0.0
                seen = self._replaced[one.snapshot_id] = uptime - max(0.0, age)
            if uptime - seen > self._keep and one.snapshot_id not in held:
                expired.append(one.snapshot_id)
        return expired

    def _collect(self, table: Table) -> None:
        """Remove the files that no retained snapshot refers to."""
        metadata = table.metadata
        needed = {_name(table.metadata_location)}
        needed.update(_name(one.metadata_file) for one in metadata.metadata_log)
        data: set[str] = set()
        used = set()
        for snapshot in metadata.snapshots:
            needed.add(_name(snapshot.manifest_list))
            if snapshot.snapshot_id not in self._lists:
                manifests = snapshot.manifests(table.io)
                for one in manifests:
                    name = _name(one.manifest_path)
                    if name not in self._manifests:
                        self._manifests[name] = _listed(table, one)
                self._lists[snapshot.snapshot_id] = {_name(one.manifest_path) for one in manifests}
            used |= self._lists[snapshot.snapshot_id]
        for name in used:
            data |= self._manifests[name]
        kept = {one.snapshot_id for one in metadata.snapshots}
        self._lists = {number: found for number, found in self._lists.items() if number in kept}
        self._replaced = {number: at for number, at in self._replaced.items() if number in kept}
        self._manifests = {name: found for name, found in self._manifests.items() if name in used}
        self._remove_others(self._links, data)
        self._remove_others(self._folder / "metadata", needed | used)

    def _remove_others(self, folder: Path, needed: set[str]) -> None:
        for name in os.listdir(folder):
            if name not in needed:
                self._files.remove(folder / name)


def _producer(change: Transaction, table: Table, operation: str, stated: dict[str, str]) -> Any:
    if operation == "append":
        return _MergeAppendFiles(Operation.APPEND, change, table.io, snapshot_properties=stated)
    producer = _Changed(Operation.OVERWRITE, change, table.io, snapshot_properties=stated)
    producer.stated = Operation(operation)
    return producer


def _data_files(table: Table) -> dict[str, DataFile]:
    current = table.current_snapshot()
    if current is None:
        return {}
    manifests = current.manifests(table.io)
    entries = (entry for one in manifests for entry in one.fetch_manifest_entry(table.io))
    return {_name(entry.data_file.file_path): entry.data_file for entry in entries}


def _listed(table: Table, manifest: ManifestFile) -> set[str]:
    return {_name(one.data_file.file_path) for one in manifest.fetch_manifest_entry(table.io)}


def _by_age(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    return sorted(snapshots, key=lambda one: one.sequence_number or 0)


def _names(schema: Schema) -> list[str]:
    return [one.name for one in schema.fields]


def _name(location: str) -> str:
    return location.rpartition("/")[2]


def _end(snapshot: Snapshot | None) -> int:
    summary = None if snapshot is None else snapshot.summary
    return 0 if summary is None else int(summary.get(END) or 0)


def _same(link: Path, path: Path) -> bool:
    """Return whether two files are one, or copies of one segment: they end with checksums of the rest."""
    try:
        return link.samefile(path) or _ending(link) == _ending(path)
    except FileNotFoundError:
        return True  # it was merged or dropped meanwhile


def _ending(path: Path) -> tuple[int, bytes]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _ENDING))
        return size, file.read()

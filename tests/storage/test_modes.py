"""What the broker makes is for its own user alone; what lets everyone in is named in a warning."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pyrite.access.users import User, write_users
from pyrite.journal.disk import open_journal
from pyrite.server.config import Config
from pyrite.server.exposed import warn_of_exposed_files
from pyrite.sinks.staging import Staging
from pyrite.storage.folder import DataFolder
from pyrite.storage.options import StreamOptions
from tests.journal.test_short_index import publish
from tests.support.durable import Machine


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def test_only_the_owner_has_access_to_a_data_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    journal = open_journal(data, [StreamOptions()])
    rows = pa.RecordBatch.from_pydict({"topic": ["a"], "payload": [b"x"]})
    Staging(data).write("sink", "part", rows.schema, [rows])
    try:
        modes = {path: path.stat().st_mode & 0o777 for path in (data, *data.rglob("*"))}
    finally:
        journal.close()
    names = {path.name for path in modes}
    assert {"data", "lock", "format", "state.sqlite", "state.sqlite-wal", "default", "part.arrow"} <= names
    wrong = {str(path) for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)}
    assert wrong == set()


def test_only_the_owner_has_access_to_segments_in_both_formats(folder: Path) -> None:
    machine = Machine(folder, [StreamOptions(segment_bytes=2_000)])
    client = machine.core.connect("publisher")
    for number in range(4):
        assert publish(client, b"%d" % number + bytes(1_500))
    machine.tick(3)
    found = list((machine.data / "streams" / "default").iterdir())
    assert {".arrow", ".parquet", ".index", ".footer"} <= {path.suffix for path in found}
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}
    machine.stop()


@pytest.mark.parametrize(("mode", "warned"), [(0o755, True), (0o701, True), (0o750, False), (0o700, False)])
def test_a_data_folder_open_to_everyone_is_reported(
    tmp_path: Path, mode: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(mode)
    DataFolder(data).close()
    assert (f"{data}: every user of this machine has access to this data folder" in caplog.text) == warned
    assert data.stat().st_mode & 0o777 == mode, "it is not changed"


def test_secret_files_readable_by_everyone_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config()
    for name in ("key", "users", "tokens"):
        (tmp_path / name).write_text("")
    config.tls.certificate, config.tls.key = "server.pem", str(tmp_path / "key")
    config.access.users, config.access.jwt_keys = str(tmp_path / "users"), str(tmp_path / "tokens")
    warn_of_exposed_files(config)
    said = [record.getMessage() for record in caplog.records]
    assert [one.split(" = ")[0] for one in said] == ["tls.key", "access.users", "access.jwt_keys"]
    caplog.clear()
    for name in ("key", "users", "tokens"):
        (tmp_path / name).chmod(0o640)
    warn_of_exposed_files(config)
    assert caplog.records == []


def test_only_the_owner_has_access_to_a_file_of_users(tmp_path: Path) -> None:
    write_users(tmp_path / "users", [User("ann", "$argon2id$x", frozenset())])
    assert (tmp_path / "users").stat().st_mode & 0o777 == 0o600

"""`pyrite log sql`: DuckDB over sealed and open segments."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pyrite.storage.files import Files
from pyrite.storage.folder import DataFolder
from pyrite.storage.tiering import to_parquet

from .harness import PYRITE
from .test_log import START, entry, write


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder: `default` has a Parquet segment, a sealed and an open one; `plant` one message."""
    path = tmp_path / "data"
    DataFolder(path).close()
    offset = 0
    for number in range(3):
        rows = [entry(f"t/{one % 2}", b'{"v": %d}' % one, START + one) for one in range(offset, offset + 10)]
        offset = write(path / "streams" / "default", [rows], offset, seal=number < 2)
    first = path / "streams" / "default" / f"{0:020}.arrow"
    to_parquet(Files(), "default", first, "zstd", lambda damage: None)
    write(path / "streams" / "plant", [[entry("plant/1", b"\xff\t", START)]], 0)
    return path


def sql(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*PYRITE, "log", "sql", "--data", str(data), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_all_parts_of_a_stream_are_one_table(data: Path) -> None:
    query = """SELECT topic, count(*), sum((decode(payload)::json->>'v')::int), count(DISTINCT "offset")
        FROM log GROUP BY topic ORDER BY topic"""
    done = sql(data, query)
    even, odd = sum(range(0, 30, 2)), sum(range(1, 30, 2))
    assert done.stdout.splitlines()[1:] == [f"t/0\t15\t{even}\t15", f"t/1\t15\t{odd}\t15"], done.stderr
    assert [one for one in (data / "snapshots").iterdir() if one.is_dir()] == [], "copies are removed"


def test_streams_can_be_joined_and_printed_as_json(data: Path) -> None:
    query = 'SELECT p.*, d."offset" AS other FROM plant p JOIN "default" d ON d."offset" = 7'
    (row,) = map(json.loads, sql(data, "--json", query).stdout.splitlines())
    assert (row["topic"], row["payload"], row["other"]) == ("plant/1", "/wk=", 7)
    assert row["timestamp"] == "2027-01-15T08:00:00Z"


def test_a_folder_that_cannot_be_written_to_is_read_as_well(data: Path) -> None:
    (data / "snapshots").write_text("in the way")
    done = sql(data, "SELECT count(*) FROM log")
    assert done.stdout.splitlines()[1:] == ["30"], done.stderr


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC", "pyrite log sql: Parser Error: syntax error at or near"),
        ("SELECT colour FROM log", 'Referenced column "colour" not found'),
        ("SELECT 1 FROM other", "Table with name other does not exist"),
    ],
)
def test_a_wrong_query_is_reported(data: Path, query: str, said: str) -> None:
    done = sql(data, query)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_duckdb_is_reported(data: Path, tmp_path: Path) -> None:
    program = (
        "import importlib.util as u, sys; f = u.find_spec; "
        "u.find_spec = lambda name, *a: None if name == 'duckdb' else f(name, *a); "
        "from pyrite.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [PYRITE[0], "-c", program, "log", "sql", "--data", str(data), "SELECT 1"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 1
    assert done.stderr == "pyrite log sql: DuckDB is missing; install it with pip install 'pyrite[sql]'\n"

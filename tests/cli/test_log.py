"""`pyrite log`, run as a user would."""

from __future__ import annotations

import base64
import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pyrite.broker.message import Batch, Properties
from pyrite.cli.main import main
from pyrite.journal.encoding import Entry
from pyrite.storage.files import Files
from pyrite.storage.folder import DataFolder
from pyrite.storage.index import index_of, read_index
from pyrite.storage.segment_writer import SegmentWriter
from pyrite.storage.tiering import to_parquet
from tests.storage.samples import append_entries

from .harness import PYRITE, Running

START = 1_800_000_000_000_000
HOUR = 3_600_000_000
TIMES = ["2027-01-15T08:00:00", "2027-01-15T09:00:00", "2027-01-15T10:00:00"]


def entry(topic: str, payload: bytes, time: int, properties: Properties | None = None) -> Entry:
    return Entry(Batch(topic.encode(), payload, 1, False, properties, None, "ann"), time, None)


def write(folder: Path, batches: list[list[Entry]], base: int, seal: bool = True) -> int:
    """Write a segment, and return the offset after it."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = SegmentWriter(Files(), folder, base)
    for entries in batches:
        append_entries(writer, entries, True)
    if seal:
        writer.seal()
    else:
        writer.close()
    return writer.next_offset


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder: 30 messages in the stream default, ten an hour, one segment an hour; one in orders."""
    path = tmp_path / "data"
    DataFolder(path).close()
    offset = 0
    for hour in range(3):
        batches = [
            [
                entry(f"sensors/{number}", b"%d" % (10 * hour + number), START + hour * HOUR + number)
                for number in range(first, first + 5)
            ]
            for first in (0, 5)
        ]
        offset = write(path / "streams" / "default", batches, offset, seal=hour < 2)
    carried = Properties(1, 60, "text/plain", "answers", b"\xff\x01", (("run", "7"), ("run", "8")))
    write(path / "streams" / "orders", [[entry("orders/é", b"\xfe", START, carried)]], 0)
    return path


Log = Callable[..., tuple[int, str, str]]


@pytest.fixture
def log(data: Path, capfd: pytest.CaptureFixture[str]) -> Log:
    """Run a command of `pyrite log`: its exit code, its output, and its errors."""

    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        exit_code = main(["log", command, "--data", str(data), *arguments])
        sys.stdout.flush()
        return exit_code, *capfd.readouterr()

    return run


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def damage(data: Path) -> tuple[Path, int, int]:
    """Damage the second batch of the first segment."""
    path = data / "streams" / "default" / f"{0:020d}.arrow"
    one = read_index(index_of(path))[0][1]
    flip(path, int(one["position"]) + 500)
    return path, int(one["first"]), int(one["first"] + one["count"] - 1)


# ls


def test_ls_lists_streams(log: Log, data: Path) -> None:
    exit_code, output, errors = log("ls")
    assert (exit_code, errors) == (0, "")
    first, second = [line.split("\t") for line in output.splitlines()]
    assert first[:7] == [
        "default", "3", "0", "30", "30", "2027-01-15T08:00:00.000000Z", "2027-01-15T10:00:00.000009Z",
    ]  # fmt: skip
    assert int(first[7]) == sum(path.stat().st_size for path in (data / "streams" / "default").iterdir())
    assert second[:5] == ["orders", "1", "0", "1", "1"]


def test_ls_lists_segments(log: Log, data: Path) -> None:
    output = log("ls", "default")[1]
    rows = [line.split("\t") for line in output.splitlines()]
    assert [row[1:6] for row in rows] == [
        [f"{base:020d}.arrow", "arrow", str(base), str(base + 9), "10"] for base in (0, 10, 20)
    ]
    assert [row[6] for row in rows] == [f"{time}.000000Z" for time in TIMES]
    assert log("ls", "-l")[1].startswith(output)
    assert len(log("ls", "-l")[1].splitlines()) == 4


def test_ls_is_right_while_a_broker_converts_a_segment(
    log: Log, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [line.split("\t")[:7] for line in log("ls")[1].splitlines()]
    iterdir = Path.iterdir

    def changed(path: Path) -> Iterator[Path]:
        found = list(iterdir(path))
        if path.name == "default":
            monkeypatch.undo()
            to_parquet(Files(), "default", path / f"{0:020d}.arrow", "zstd", print)
        return iter(found)

    monkeypatch.setattr(Path, "iterdir", changed)
    exit_code, output, errors = log("ls")
    assert (exit_code, errors) == (0, "")
    assert [line.split("\t")[:7] for line in output.splitlines()] == expected


def test_ls_of_a_folder_without_streams_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    DataFolder(tmp_path / "new").close()
    assert main(["log", "ls", "--data", str(tmp_path / "new")]) == 0
    assert capfd.readouterr() == ("", "")


def test_ls_prints_a_table_on_a_terminal(data: Path) -> None:
    controller, terminal = os.openpty()
    command = [*PYRITE, "log", "ls", "default", "--data", str(data)]
    environment = {**os.environ, "COLUMNS": "200", "TERM": "xterm"}
    with subprocess.Popen(command, stdout=terminal, env=environment) as process:
        os.close(terminal)
        output = b""
        try:
            while piece := os.read(controller, 65_536):
                output += piece
        except OSError:
            pass  # the terminal's other end is closed
    os.close(controller)
    assert process.returncode == 0
    assert b"messages" in output
    assert b"kB" in output
    assert b"\t" not in output


# cat


def test_cat_prints_time_topic_and_payload(log: Log) -> None:
    exit_code, output, errors = log("cat")
    assert (exit_code, errors) == (0, "")
    lines = output.splitlines()
    assert len(lines) == 30
    assert lines[11] == "2027-01-15T09:00:00.000001Z sensors/1 11"


def test_cat_prints_the_exact_bytes_of_a_payload(data: Path) -> None:
    command = [*PYRITE, "log", "cat", "orders", "--data", str(data)]
    result = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert result.stdout == b"2027-01-15T08:00:00.000000Z orders/\xc3\xa9 \xfe\n"


@pytest.mark.parametrize(
    ("arguments", "payloads"),
    [
        (["--from", "28"], [28, 29]),
        (["--from", "00000000000000000028"], [28, 29]),
        (["--to", "2"], [0, 1]),
        (["--from", "9", "--to", "11"], [9, 10]),
        (["--from", "earliest", "-n", "2"], [0, 1]),
        (["--from", "latest"], []),
        (["--from", f"{TIMES[2]}.000008Z"], [28, 29]),
        (["--from", f"{TIMES[2]}.000008"], [28, 29]),
        (["--from", "2027-01-15T10:00:00.000008+01:00", "--to", f"{TIMES[2]}Z"], [18, 19, *range(20, 20)]),
        (["--from", "2027-01-16"], []),
        (["--to", "2027-01-15T08:00:00.000001Z"], [0]),
        (["--from", "100"], []),
        (["--filter", "sensors/3"], [3, 13, 23]),
        (["--filter", "sensors/+", "--count", "11"], list(range(11))),
        (["--filter", "sensors/3", "-n", "2"], [3, 13]),
        (["--filter", "+"], []),
        (["--filter", "#", "--from", "29"], [29]),
        (["default", "--from", "29"], [29]),
    ],
)
def test_cat_selects_by_position_filter_and_count(
    log: Log, arguments: list[str], payloads: list[int]
) -> None:
    exit_code, output, _ = log("cat", *arguments)
    assert exit_code == 0
    assert [int(line.rpartition(" ")[2]) for line in output.splitlines()] == payloads


@pytest.mark.parametrize("ago", ["-90m", "-1h30m", "-5400s", "-0.0625d"])
def test_cat_accepts_a_time_ago(log: Log, monkeypatch: pytest.MonkeyPatch, ago: str) -> None:
    monkeypatch.setattr("time.time_ns", lambda: (START + 2 * HOUR) * 1000)
    output = log("cat", "--from", ago)[1]
    assert [int(line.rpartition(" ")[2]) for line in output.splitlines()] == list(range(10, 30))


def test_cat_prints_json(log: Log) -> None:
    output = log("cat", "--json", "--from", "29")[1]
    assert json.loads(output) == {
        "offset": 29,
        "timestamp": "2027-01-15T10:00:00.000009Z",
        "topic": "sensors/9",
        "payload": "29",
        "qos": 1,
        "retain": False,
        "client_id": "ann",
    }
    assert json.loads(log("cat", "orders", "--json")[1]) == {
        "offset": 0,
        "timestamp": "2027-01-15T08:00:00.000000Z",
        "topic": "orders/é",
        "payload_base64": base64.b64encode(b"\xfe").decode(),
        "qos": 1,
        "retain": False,
        "client_id": "ann",
        "payload_format": 1,
        "message_expiry": 60,
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation_data_base64": base64.b64encode(b"\xff\x01").decode(),
        "user_properties": [["run", "7"], ["run", "8"]],
    }


def test_cat_prints_intact_messages_and_reports_damage(log: Log, data: Path) -> None:
    path, first, last = damage(data)
    exit_code, output, errors = log("cat")
    assert exit_code == 1
    payloads = [int(line.rpartition(" ")[2]) for line in output.splitlines()]
    assert payloads == [number for number in range(30) if not first <= number <= last]
    assert errors == (
        f"damaged: stream default, {path.name}: the checksum of a record batch is wrong; "
        f"messages {first} to {last} are lost\n"
    )


@pytest.fixture
def following(data: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start(*arguments: str) -> Running:
        running.append(Running(*PYRITE, "log", "cat", "--data", str(data), *arguments))
        return running[-1]

    yield start
    for each in running:
        each.close()


def append(data: Path, payload: bytes, when: int = START + 3 * HOUR, stream: str = "default") -> None:
    """Add a message, in a new segment if need be, as a broker does."""
    folder = data / "streams" / stream
    last = sorted(folder.glob("*.arrow"))[-1]
    records, _ = read_index(index_of(last))
    writer = SegmentWriter(Files(), folder, int(last.stem), records)
    if len(records) == 4:
        writer.seal()
        writer = SegmentWriter(Files(), folder, writer.next_offset)
    append_entries(writer, [entry("sensors/9", payload, when)], True)
    writer.close()


def test_cat_follow_prints_new_messages_until_interrupted(
    data: Path, following: Callable[..., Running]
) -> None:
    cat = following("--from", "29", "--follow")
    cat.wait_for("sensors/9 29", "stdout")
    for number in range(4):
        append(data, b"more %d" % number)
        cat.wait_for(f"sensors/9 more {number}", "stdout")
    cat.process.send_signal(signal.SIGINT)
    assert cat.exit_code() == 0
    assert cat.output("stderr") == b""


def test_cat_follow_stops_after_count_messages(data: Path, following: Callable[..., Running]) -> None:
    cat = following("--from", "latest", "--follow", "-n", "2", "--json")
    number = 29
    while cat.process.poll() is None:
        number += 1
        append(data, b"%d" % number)
    first, second = [json.loads(line) for line in cat.output().splitlines()]
    assert first["offset"] > 29
    assert second["offset"] == first["offset"] + 1 == int(second["payload"])
    assert cat.exit_code() == 0


def test_cat_follow_stops_at_a_time_in_the_future(data: Path, following: Callable[..., Running]) -> None:
    until = time.time_ns() // 1_000 + 2_000_000
    write(data / "streams" / "fresh", [[entry("a", b"before", until - 9_000_000)]], 0)
    cat = following("fresh", "--follow", "--to", datetime.fromtimestamp(until / 1e6, UTC).isoformat())
    cat.wait_for("a before", "stdout")
    append(data, b"in time", until - 1, "fresh")
    cat.wait_for("sensors/9 in time", "stdout")
    append(data, b"too late", until, "fresh")
    assert cat.exit_code() == 0
    assert time.time_ns() // 1_000 >= until
    assert b"too late" not in cat.output("stdout")


def test_cat_exits_when_the_reader_of_its_output_is_gone(data: Path) -> None:
    folder = data / "streams" / "many"
    write(folder, [[entry("a", bytes(100), START) for _ in range(1_000)] for _ in range(10)], 0)
    for options in ("", "--follow"):
        command = f"{' '.join(PYRITE)} log cat many {options} --data {data}"
        script = f"set -o pipefail; {command} | head -n 1 | wc -l"
        result = subprocess.run(["bash", "-c", script], capture_output=True, timeout=60, check=False)
        assert (result.returncode, result.stdout.strip(), result.stderr) == (0, b"1", b"")


def test_cat_follow_exits_when_the_reader_is_gone_though_no_message_arrives(data: Path) -> None:
    command = [*PYRITE, "log", "cat", "-f", "--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 0


# verify


def test_verify_reports_no_damage(log: Log) -> None:
    exit_code, output, errors = log("verify")
    assert (exit_code, errors) == (0, "")
    assert output.startswith("2 streams, ")
    assert output.endswith(" bytes: no damage\n")


def test_verify_reports_each_damage(log: Log, data: Path) -> None:
    path, first, last = damage(data)
    flip(index_of(data / "streams" / "orders" / f"{0:020d}.arrow"), 70)
    exit_code, output, _ = log("verify")
    assert exit_code == 1
    lines = output.splitlines()
    assert lines[0] == (
        f"stream default, {path.name}: the checksum of a record batch is wrong; "
        f"messages {first} to {last} are lost"
    )
    assert lines[1].startswith(
        f"stream orders, {0:020d}.arrow.index: record 0, of messages 0 to 0, is damaged"
    )
    assert lines[2].endswith("damage at 2 places, 5 messages lost")
    assert log("verify", "orders")[0] == 1
    assert log("verify", "default")[1].splitlines()[0] == lines[0]


# export


def test_export_writes_parquet(log: Log, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    exit_code, output, errors = log("export", str(file), "--filter", "sensors/3", "--from", "10")
    assert (exit_code, output, errors) == (0, "", f"2 messages written to {file}\n")
    table = pq.read_table(file)
    assert table.column("offset").to_pylist() == [13, 23]
    assert [each.name for each in tmp_path.iterdir() if each.name != "data"] == ["x.parquet"]


def test_export_writes_csv(log: Log, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    assert log("export", "orders", str(file))[0] == 0
    with file.open(newline="") as lines:
        (row,) = csv.DictReader(lines)
    assert {name: value for name, value in row.items() if value} == {
        "offset": "0",
        "timestamp": "2027-01-15T08:00:00.000000Z",
        "topic": "orders/é",
        "payload_base64": "/g==",
        "qos": "1",
        "retain": "false",
        "client_id": "ann",
        "payload_format": "1",
        "message_expiry": "60",
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation_data_base64": "/wE=",
        "user_properties": '[["run", "7"], ["run", "8"]]',
    }


@pytest.mark.parametrize("ending", ["json", "jsonl", "NDJSON"])
def test_export_writes_json(log: Log, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"x.{ending}"
    assert log("export", str(file), "--to", "3")[0] == 0
    assert file.read_text() == log("cat", "--json", "--to", "3")[1]


@pytest.mark.parametrize("at", range(3))
def test_export_takes_options_in_any_place(log: Log, tmp_path: Path, at: int) -> None:
    words = ["orders", str(tmp_path / "x.json")]
    words[at:at] = ["--from", "-9999d", "--force"]
    exit_code, _, errors = log("export", *words)
    assert (exit_code, errors) == (0, f"1 messages written to {tmp_path / 'x.json'}\n")


def test_an_unknown_argument_is_reported_with_the_usage_of_the_command(
    log: Log, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        log("export", "orders", "x.csv", "y.csv")
    assert ended.value.code == 2
    errors = capfd.readouterr()[1]
    assert errors.startswith("usage: pyrite log export")
    assert errors.endswith("pyrite log export: error: unrecognized arguments: y.csv\n")


def test_export_writes_to_standard_output(log: Log) -> None:
    exit_code, output, errors = log("export", "--format", "json", "-")
    assert (exit_code, errors) == (0, "30 messages written to standard output\n")
    assert output == log("cat", "--json")[1]


def test_export_of_no_messages_writes_a_file(log: Log, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    assert log("export", str(file), "--from", "latest")[0] == 0
    assert pq.read_table(file).num_rows == 0


def test_export_replaces_a_file_only_with_force(log: Log, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("mine")
    assert log("export", str(file)) == (
        1,
        "",
        f"pyrite log export: {file} already exists: pass --force to replace it\n",
    )
    assert file.read_text() == "mine"
    assert log("export", str(file), "--force")[0] == 0
    assert file.read_text() != "mine"


def test_an_interrupted_export_leaves_no_file(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_batch: object) -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    monkeypatch.setattr("pyrite.cli.log.rows.json_lines", interrupted)
    assert log("export", str(tmp_path / "x.json"))[0] == 130
    assert [each.name for each in tmp_path.iterdir()] == ["data"]


def test_export_reports_and_leaves_out_damaged_messages(log: Log, data: Path, tmp_path: Path) -> None:
    _, first, last = damage(data)
    file = tmp_path / "x.parquet"
    exit_code, _, errors = log("export", str(file))
    assert exit_code == 1
    assert f"messages {first} to {last} are lost" in errors
    found = pq.read_table(file).column("offset").to_pylist()
    assert found == [number for number in range(30) if not first <= number <= last]


# compact


def test_compact_merges_a_stream_into_one_parquet_file(log: Log, data: Path) -> None:
    before = log("cat", "--json")[1]
    exit_code, output, errors = log("compact")
    assert (exit_code, errors) == (0, "")
    assert output.splitlines()[0].startswith("default: 3 converted to Parquet, 3 merged; ")
    assert log("cat", "--json")[1] == before
    rows = [line.split("\t") for line in log("ls", "-l")[1].splitlines()]
    assert [row[1:6] for row in rows] == [
        [f"{0:020d}-{30:020d}.parquet", "parquet", "0", "29", "30"],
        [f"{0:020d}.parquet", "parquet", "0", "0", "1"],
    ]
    assert log("verify")[0] == 0
    assert log("compact", "default")[1].startswith("default: 0 converted to Parquet, 0 merged; ")


def test_compact_can_be_limited_to_one_stream(log: Log, data: Path) -> None:
    assert log("compact", "orders", "--compression", "none")[0] == 0
    assert [row.split("\t")[2] for row in log("ls", "-l")[1].splitlines()] == ["arrow"] * 3 + ["parquet"]


def test_compact_merges_up_to_the_segment_size(log: Log) -> None:
    assert ", 0 merged" in log("compact", "default", "--segment-bytes", "1000")[1]


def test_compact_seals_the_segment_a_crash_left(log: Log, data: Path) -> None:
    before = log("cat", "--json")[1]
    last = data / "streams" / "default" / f"{20:020d}.arrow"
    with last.open("ab") as file:
        file.write(b"\xff\xff\xff\xff half of a batch")
    assert log("compact")[0] == 0
    assert log("cat", "--json")[1] == before
    assert log("verify")[0] == 0


def test_compact_leaves_an_empty_segment_alone(log: Log, data: Path) -> None:
    write(data / "streams" / "default", [], 30, seal=False)
    assert log("compact")[0] == 0
    assert [row.split("\t")[2] for row in log("ls", "default")[1].splitlines()] == ["arrow", "parquet"][::-1]


def test_compact_keeps_a_damaged_segment(log: Log, data: Path) -> None:
    path, first, last = damage(data)
    exit_code, _, errors = log("compact")
    assert exit_code == 1
    assert f"messages {first} to {last} are lost" in errors
    assert path.with_name(f"{path.name}.damaged").exists()
    assert log("verify")[0] == 1


def test_compact_is_refused_while_a_broker_uses_the_folder(log: Log, data: Path) -> None:
    with closing(DataFolder(data)):
        before = sorted((data / "streams" / "default").iterdir())
        exit_code, output, errors = log("compact")
    assert (exit_code, output) == (1, "")
    assert "uses this folder" in errors
    assert str(os.getpid()) in errors
    assert sorted((data / "streams" / "default").iterdir()) == before


# Mistakes


def test_a_missing_data_folder_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for command in ("ls", "cat", "verify", "compact"):
        assert main(["log", command, "--data", str(tmp_path / "nowhere")]) == 1
        assert capfd.readouterr().err.startswith(
            f"pyrite log {command}: no data folder {tmp_path / 'nowhere'}"
        )
        assert main(["log", command, "--data", str(tmp_path)]) == 1
        assert "is not a Pyrite data folder" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["ls"], ["cat"], ["verify"], ["compact"], ["export", "x.csv"]])
def test_a_missing_stream_is_reported(log: Log, data: Path, command: list[str]) -> None:
    exit_code, output, errors = log(command[0], "nope", *command[1:])
    assert (exit_code, output) == (1, "")
    assert errors == (
        f"pyrite log {command[0]}: no stream 'nope' in {data}; existing streams: default, orders\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cat", "--from", "yesterday"], "'yesterday' is not a position: expected an offset"),
        (["cat", "--to", "-5x"], "'-5x' is not a position"),
        (["cat", "--filter", "a/#/b"], "'a/#/b': '#' must be the whole last level"),
        (["cat", "--filter", ""], "a topic filter must not be empty"),
        (["cat", "--filter", "$share/g/a"], "'$share/g/a': a shared subscription has no meaning here"),
        (["cat", "-n", "0"], "expected a number above 0, not '0'"),
        (["compact", "--compression", "best"], "invalid choice: 'best'"),
        (["export"], "the following arguments are required: FILE"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_wrong_options_are_explained(
    capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["log", *arguments])
    assert ended.value.code == 2
    assert message in capfd.readouterr().err


@pytest.mark.parametrize("command", ["ls", "cat", "verify", "export -", "compact"])
def test_an_unknown_data_format_is_refused_and_left_alone(log: Log, data: Path, command: str) -> None:
    (data / "format").write_text("pyrite data, format 7\n")
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    arguments = command.split()
    exit_code, output, errors = log(*arguments, *(["--format", "json"] if arguments[0] == "export" else []))
    assert (exit_code, output) == (1, "")
    assert f"{data}: unsupported format 'pyrite data, format 7'; this version of Pyrite reads" in errors
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def test_an_unknown_file_extension_is_refused(log: Log, tmp_path: Path) -> None:
    exit_code, _, errors = log("export", str(tmp_path / "x.txt"))
    assert exit_code == 2
    assert "unknown file extension; expected one of .parquet, .csv" in errors


def test_a_file_that_cannot_be_written_is_reported(log: Log, tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "x.csv"
    assert log("export", str(file)) == (1, "", f"pyrite log export: {file}: No such file or directory\n")


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_export_never_replaces_a_device_or_a_folder(log: Log, tmp_path: Path, force: list[str]) -> None:
    """Else an export to /dev/null would turn it into a regular file."""
    pipe, folder = tmp_path / "pipe.csv", tmp_path / "folder.csv"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder):
        exit_code, _, errors = log("export", str(path), *force)
        assert exit_code == 1
        expected = "is not a regular file: give another name, or - for standard output"
        assert errors == f"pyrite log export: {path} {expected}\n"
    assert pipe.is_fifo()


@pytest.mark.parametrize("command", ["ls", "cat", "verify", "export", "compact"])
def test_help_has_examples(capfd: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["log", command, "--help"])
    assert ended.value.code == 0
    assert f"\n  pyrite log {command}" in capfd.readouterr().out

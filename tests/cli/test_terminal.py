"""Control characters in topics and payloads are escaped on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyrite.client import BlockingClient
from pyrite.process.terminal import printable, printable_bytes
from tests.cli.harness import PYRITE
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.slow

TOPIC = "a/\x1b[31m\u202eb"
PAYLOAD = "\x1b]0;title\x07 \x9b2J \x7f \u2066x\u200b\nsecond\tline é".encode()
SECONDS = 30


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("terminal") / "data"


@pytest.fixture(scope="module")
def broker(data: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess("--listen=mqtt://127.0.0.1:0", "--data", str(data)) as broker:
        with BlockingClient(broker.urls[0]) as client:
            client.publish(TOPIC, PAYLOAD, qos=1, retain=True)
        yield broker


def commands(broker: BrokerProcess, data: Path) -> dict[str, list[str]]:
    url = ["-h", "127.0.0.1", "-p", str(broker.port())]
    return {
        "sub": ["sub", *url, "-t", "a/#", "-C", "1"],
        "sub -v": ["sub", *url, "-t", "a/#", "-C", "1", "-v"],
        "sub --json": ["sub", *url, "-t", "a/#", "-C", "1", "--json"],
        "sub -F": ["sub", *url, "-t", "a/#", "-C", "1", "-F", "%t %p %j"],
        "topics": ["topics", *url],
        "topics --plain": ["topics", *url, "list", "--plain"],
        "topics --json": ["topics", *url, "list", "--json"],
        "pull": ["pull", *url, "shown", "-t", "a/#", "--keep"],
        "log cat": ["log", "cat", "--data", str(data)],
        "log cat --json": ["log", "cat", "--data", str(data), "--json"],
    }


def on_terminal(command: list[str]) -> str:
    """Run a command on a terminal and return its output."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [*PYRITE, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200", "LINES": "50"},
        )
    finally:
        os.close(theirs)
    written = b""
    try:
        while True:
            try:
                piece = os.read(ours, 65_536)
            except OSError:  # the command has ended
                break
            if not piece:
                break
            written += piece
        assert process.wait(SECONDS) == 0, written
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return written.decode().replace("\r\n", "\n")


NAMES = [
    "sub",
    "sub -v",
    "sub --json",
    "sub -F",
    "topics",
    "topics --plain",
    "topics --json",
    "pull",
    "log cat",
    "log cat --json",
]


@pytest.mark.parametrize("name", NAMES)
def test_commands_escape_control_characters_on_a_terminal(
    broker: BrokerProcess, data: Path, name: str
) -> None:
    shown = on_terminal(commands(broker, data)[name])
    assert [one for one in shown if one not in "\n\t" and printable(one) != one] == []
    assert "title" in shown
    assert "\\u009b2J" in shown
    assert "é" in shown
    if name != "sub":
        assert "\\u202eb" in shown


@pytest.mark.parametrize("name", ["sub", "log cat"])
def test_piped_output_is_not_escaped(broker: BrokerProcess, data: Path, name: str) -> None:
    command = [*PYRITE, *commands(broker, data)[name]]
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
    assert done.stdout.endswith(PAYLOAD + b"\n")
    assert (TOPIC.encode() in done.stdout) is (name == "log cat")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("é ü \N{SNOWMAN}", "é ü \N{SNOWMAN}"),
        ("\x00\x1b\x7f\x85\x9f", "\\u0000\\u001b\\u007f\\u0085\\u009f"),
        ("\u200e\u202a\u2067\u2028\ufeff", "\\u200e\\u202a\\u2067\\u2028\\ufeff"),
        ("\U000e0041", "\\udb40\\udc41"),
        ("a\nb", "a\\u000ab"),
    ],
    ids=range(6),
)
def test_printable_escapes_control_and_format_characters(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_printable_bytes_keeps_newlines_and_escapes_invalid_utf_8() -> None:
    assert printable_bytes(b"a\tb\nc\rd\xff") == b"a\tb\nc\\u000dd\\xff"

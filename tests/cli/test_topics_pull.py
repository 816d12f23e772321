"""`pyrite topics` and `pyrite pull`, run as a user would."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import BrokerProcess

pytestmark = pytest.mark.slow

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess("--data", str(data), "--listen=mqtt://127.0.0.1:0") as process:
        yield process


def pyrite(broker: BrokerProcess, command: str, *arguments: str) -> Done:
    """Run a command against the broker."""
    where = ["-h", "127.0.0.1", "-p", str(broker.port())]
    words = [sys.executable, "-m", "pyrite", command, *where, *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=30)


def test_topics_lists_creates_and_deletes_topics(broker: BrokerProcess) -> None:
    assert pyrite(broker, "topics", "create", "weather/rain", "news").returncode == 0
    pyrite(broker, "pub", "-t", "weather/temp", "-m", "98", "-r", "-q", "1")
    shown = pyrite(broker, "topics")
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = [line.strip(" │├└─") for line in shown.stdout.splitlines()]
    assert lines == ["topics", "news", "weather", "rain", "temp = 98"]
    plain = pyrite(broker, "topics", "list", "weather/#", "--plain")
    assert plain.stdout == "weather/rain\nweather/temp\t98\n"
    found = [json.loads(line) for line in pyrite(broker, "topics", "list", "--json").stdout.splitlines()]
    assert {"topic": "weather/temp", "kept": "98"} in found
    assert {"topic": "news", "kept": None} in found
    assert pyrite(broker, "topics", "delete", "weather/temp", "news").returncode == 0
    assert pyrite(broker, "topics", "list", "--plain").stdout == "weather/rain\n"
    refused = pyrite(broker, "topics", "delete", "news")
    assert refused.returncode == 1
    assert "there is no topic 'news'" in refused.stderr
    wrong = pyrite(broker, "topics", "create", "a/#")
    assert wrong.returncode == 1
    assert "wildcard" in wrong.stderr
    assert pyrite(broker, "topics", "list", "nothing/#").stderr == "no topics\n"


def test_pull_fetches_each_message_of_a_consumer_once(broker: BrokerProcess) -> None:
    for number in range(5):
        pyrite(broker, "pub", "-t", "orders/a", "-m", f"order {number}", "-q", "1")
    first = pyrite(broker, "pull", "billing", "-t", "orders/#", "-n", "2")
    assert (first.returncode, first.stdout) == (0, "orders/a order 0\norders/a order 1\n")
    rest = pyrite(broker, "pull", "billing", "-t", "orders/#", "--json")
    found = [json.loads(line) for line in rest.stdout.splitlines()]
    assert [one["payload"] for one in found] == ["order 2", "order 3", "order 4"]
    assert all(one["topic"] == "orders/a" and ":" in one["place"] for one in found)
    assert pyrite(broker, "pull", "billing").stdout == ""  # the filter it was created with
    other = pyrite(broker, "pull", "billing", "-t", "others/#")
    assert other.returncode == 1
    assert "with filter 'orders/#'" in other.stderr
    assert pyrite(broker, "pull", "billing", "--delete").returncode == 0
    gone = pyrite(broker, "pull", "billing", "--delete")
    assert gone.returncode == 1
    assert "there is no consumer 'billing'" in gone.stderr
    again = pyrite(broker, "pull", "billing", "-t", "orders/#", "-n", "1")
    assert again.stdout == "orders/a order 0\n"


def test_pull_starts_at_the_given_position(broker: BrokerProcess) -> None:
    pyrite(broker, "pub", "-t", "past", "-m", "one", "-q", "1")
    found = pyrite(broker, "pull", "historian", "-t", "past", "--from", "-1h")
    assert (found.returncode, found.stdout, found.stderr) == (0, "past one\n", "")


def test_pull_as_json_distinguishes_bytes_from_text(broker: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xdd\0")
    pyrite(broker, "pub", "-t", "exact", "-f", str(tmp_path / "bytes"), "-q", "1")
    pyrite(broker, "pub", "-t", "exact", "-m", r"\xdd", "-q", "1")
    lines = pyrite(broker, "pull", "exact", "-t", "exact", "--json").stdout.splitlines()
    first, second = [json.loads(line) for line in lines]
    assert "payload" not in first
    assert base64.b64decode(first["payload_base64"]) == b"\xdd\0"
    assert second["payload"] == r"\xdd"


@pytest.mark.parametrize("name", ["", "a#", "+"])
def test_an_invalid_consumer_name_is_refused(broker: BrokerProcess, name: str) -> None:
    refused = pyrite(broker, "pull", name)
    assert refused.returncode == 2
    assert refused.stderr.endswith(
        f"argument name: a consumer name must not be empty or contain + or #, got {name!r}\n"
    )


def test_pull_follow_prints_new_messages_until_interrupted(broker: BrokerProcess) -> None:
    url = f"mqtt://127.0.0.1:{broker.port()}"
    words = ["pull", "-L", url, "tail", "-t", "tail/#", "--follow"]
    pyrite(broker, "pub", "-t", "tail/a", "-m", "too early", "-q", "1")
    made = pyrite(broker, "pull", "tail", "-t", "tail/#", "--from", "latest")
    assert (made.returncode, made.stdout) == (0, "")
    process = subprocess.Popen(
        [sys.executable, "-m", "pyrite", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        for text in ("hello", "again"):
            pyrite(broker, "pub", "-t", "tail/a", "-m", text, "-q", "1")
            assert process.stdout.readline() == f"tail/a {text}\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("words", [["topics"], ["pull", "x"]])
def test_a_refused_connection_is_reported(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyrite", *words, "-L", "mqtt://127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"pyrite {words[0]}: ")
    assert "refused" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_topic_in_the_url_is_refused() -> None:
    words = ["topics", "-L", "mqtt://ann:sesame@127.0.0.1:1/weather"]
    done = subprocess.run(
        [sys.executable, "-m", "pyrite", *words], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert "-L mqtt://(not shown)@127.0.0.1:1/weather: this command takes no topic in the URL" in done.stderr

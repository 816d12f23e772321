"""Each study, run with small bounds: its measurements and its report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

needs_captures = pytest.mark.skipif(
    shutil.which("tshark") is None or os.geteuid() != 0, reason="captures take tshark, and root"
)
needs_namespaces = pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 is not installed")
pytestmark = pytest.mark.timeout(300)
LARGEST_PICTURE = 150_000


def study(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "studies", *words],
        capture_output=True,
        text=True,
        timeout=280,
        **options,
    )


def run(folder: Path, name: str, *words: str) -> dict[str, Any]:
    """Run a study and check its output; returns its figures."""
    done = study(name, "--out", str(folder), *words)
    assert done.returncode == 0, done.stderr
    assert f"report: {folder / name}.md" in done.stdout.replace("\n", "")
    report = (folder / f"{name}.md").read_text()
    assert "## In short" in report
    assert "## The machine" in report
    assert str(folder) not in report
    pictures = sorted(path.name for path in folder.glob("*.png"))
    assert pictures
    assert all(f"({picture})" in report for picture in pictures)
    assert all(0 < (folder / picture).stat().st_size < LARGEST_PICTURE for picture in pictures)
    figures = json.loads((folder / f"{name}.json").read_text())
    assert isinstance(figures, dict)
    return figures


@needs_captures
@needs_namespaces
def test_the_tcp_flow_control_study_adds_up(tmp_path: Path) -> None:
    figures = run(tmp_path, "tcp-flow-control", "--seconds", "3", "--speed", "2000000")
    assert figures["slow_link_left_out"] == ""
    plain, ack, link = figures["experiments"]
    for one in (plain, ack, link):
        assert one["published"] == one["received_by_broker"] > 0
        assert one["delivered"] + one["dropped_by_broker"] == one["published"]
        assert one["repeated"] == 0
        assert one["to_subscriber"]["window"]["most"] > 0
    assert ack["delivered"] == ack["acknowledged"] == ack["published"], "with ack nothing is lost"
    assert plain["to_subscriber"]["events"]["zero_window"] > 0
    assert plain["to_subscriber"]["window"]["least"] == 0
    for one in (plain, ack):
        phases = {phase["name"]: phase for phase in one["phases"]}
        if one is plain:
            assert phases["stopped"]["limited_by_receive_window"] > 0.3
        published, delivered = phases["stopped"]["published"], phases["stopped"]["delivered"]
        assert delivered < published / 2, "the publisher goes on while the subscriber reads nothing"
    assert link["to_subscriber"]["events"]["zero_window"] == 0, "the link is slow, and not the reader"
    # The link carries the subscriber's bytes and retransmissions.
    assert link["to_subscriber"]["bytes"] >= link["bytes_read"]


@needs_captures
@needs_namespaces
def test_the_connections_study_adds_up(tmp_path: Path) -> None:
    figures = run(tmp_path, "connections", "--clients", "2500", "--limit", "200", "--seconds", "30")
    assert figures["ports_left_out"] == ""
    descriptors, setting, client, one_address, four_addresses, many = figures["outcomes"]
    assert descriptors["stopped_by"] == "descriptors of the broker"
    assert descriptors["clients"] < descriptors["descriptors"] <= descriptors["descriptor_limit"] == 200
    assert setting["stopped_by"] == "max_connections of the broker"
    assert setting["clients"] == 200
    assert client["stopped_by"] == "descriptors of the client"
    assert client["clients"] <= 200
    assert one_address["stopped_by"] == four_addresses["stopped_by"] == "ports of the client's address"
    assert one_address["clients"] == 200
    assert 700 < four_addresses["clients"] <= 800, "more addresses lift the limit"
    for one in (client, one_address, four_addresses):
        # A client without a descriptor or port sends no packet; the first client connected before the
        # capture.
        assert one["wire"]["syn"] == one["wire"]["syn_ack"] == one["clients"] - 1
        assert one["published"] == "PubAck"
    assert setting["wire"]["reset_of_broker"] + setting["wire"]["fin_of_broker"] > 0
    assert many["stopped_by"] == "nothing"
    assert many["clients"] == 2_500
    assert many["descriptors"] > 2_500
    assert all(one["recovered"] for one in figures["outcomes"])
    assert 0 < figures["memory_per_client"]["broker"] < 20_000


@needs_captures
def test_the_udp_loss_study_adds_up(tmp_path: Path) -> None:
    figures = run(tmp_path, "udp-loss", "--seconds", "1")
    udp, tcp = figures["raw"]
    assert udp["sent"] == udp["kept"] + udp["dropped"]
    assert udp["dropped"] > 0 < udp["kept"]
    assert udp["on_the_wire"] + udp["capture_dropped"] >= udp["sent"]
    assert tcp["kept"] == tcp["sent"]
    assert tcp["dropped"] == 0
    assert tcp["due"] == tcp["sent"] + tcp["refused"]
    runs = {(one["protocol"], one["name"]): one for one in figures["runs"]}
    assert len(runs) == 6
    for one in runs.values():
        assert one["waiting"] >= 0
        assert one["received"] <= one["transmitted"]
        if one["protocol"] == "UDP":
            # In a flood, a sign of life may have been dropped instead of a message.
            assert abs(one["ignored"]) <= 1
            assert (
                one["datagrams"] + one["capture_dropped"] >= one["datagrams_read"] + one["datagrams_dropped"]
            )
    never = runs["UDP", "never"]
    assert never["transmitted"] == 32, "no more are under way to who does not acknowledge them"
    assert never["dropped_by_broker"] > 0
    assert never["waiting"] * figures["options"]["size"] <= 1024 * 1024
    assert never["acknowledged"] + never["acknowledgements_dropped"] >= never["handled"]
    for protocol in ("UDP", "TCP"):
        lasting = runs[protocol, "ack"]
        assert lasting["received"] == lasting["handled"], "with ack nothing is lost"
        assert lasting["dropped_by_broker"] == 0
    assert (
        runs["TCP", "never"]["received"] + runs["TCP", "never"]["dropped_by_broker"]
        == runs["TCP", "never"]["sent"]
    )


def test_a_missing_tool_is_reported(tmp_path: Path) -> None:
    done = study("udp-loss", "--out", str(tmp_path), env=os.environ | {"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "tshark is not installed: install it, as with `apt install tshark`" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_a_study_without_root_is_refused(tmp_path: Path) -> None:
    # Another user that can read root's files, which may include Python.
    code = (
        "import ctypes, os, sys; os.seteuid(65534); ctypes.CDLL(None).setfsuid(0);"
        "from studies.__main__ import main;"
        f"sys.exit(main(['connections', '--out', {str(tmp_path)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "capturing takes root: run it as root" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("udp-loss", "--seconds", "0"), "expected a number from 1 to 600, not '0'"),
        (("tcp-flow-control", "--rate", "x"), "expected a number above 0, not 'x'"),
        (("weather",), "invalid choice: 'weather'"),
        ((), "required: STUDY"),
    ],
)
def test_wrong_options_are_explained(words: tuple[str, ...], expected: str) -> None:
    done = study(*words)
    assert done.returncode == 2
    assert expected in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("udp-loss", "--size", "70000"), "--size 70000: expected a number from 32 to 60000"),
        (("tcp-flow-control", "--size", "5"), "--size 5: expected at least 32 bytes"),
        (("connections", "--limit", "5"), "--limit 5: expected a number from 100 to 10000"),
    ],
)
def test_impossible_sizes_are_refused(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    done = study(*words, "--out", str(tmp_path))
    assert done.returncode == 1
    assert expected in done.stderr


def test_an_unusable_output_folder_is_refused_before_the_study_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = study("connections", "--out", str(tmp_path / "file"))
    assert done.returncode == 1
    assert "file" in done.stderr


@needs_captures
@needs_namespaces
def test_ctrl_c_ends_a_study_and_its_processes(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "studies", "connections", "--out", str(tmp_path), "--limit", "200"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "ports" in line:
            break
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert (
        f"pyrite-{process.pid}-"
        not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    )
    assert processes_of(process.pid) == []


def processes_of(session: int) -> list[str]:
    """Return the processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        if rest.split()[3] == str(session) and rest.split()[0] != "Z":
            found.append(name)
    return found

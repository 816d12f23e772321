"""The whole of it at once: a broker, devices with faults, the pipeline, and a subscriber to its alerts.

Everything is a process of its own, as in earnest, on free ports, in a folder that goes at the end.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from rich.console import Console
from rich.table import Table

from pyrite.client import BlockingClient, Message, read_log
from pyrite.pipeline.project import ProjectError, find_project
from pyrite.pipeline.tables import row_counts

LIMIT = 300.0
"""Seconds that a run of the pipeline may take."""
SPEED = 60
"""The devices' clocks run so much faster, so that there is more to see."""


@dataclass(frozen=True)
class Demo:
    """How much of it."""

    devices: int
    rate: int
    seconds: int
    faults: int
    seed: int


@dataclass(frozen=True)
class Seen:
    """What was seen at the end."""

    published: int
    log: int
    rows: dict[str, int]
    faults: Counter[tuple[str, str]]
    """Device and field of each fault that was made on purpose."""
    alerts: Counter[tuple[str, str]]
    """Device and field of each alert that came to the subscriber."""
    twice: int
    """Alerts that came more than once."""

    @property
    def missed(self) -> Counter[tuple[str, str]]:
        """Faults without an alert."""
        return self.faults - self.alerts

    @property
    def false(self) -> Counter[tuple[str, str]]:
        """Alerts without a fault."""
        return self.alerts - self.faults

    @property
    def good(self) -> bool:
        """Whether every message is accounted for, and the alerts are the faults."""
        decoded = self.rows["silver_telemetry"] + self.rows["bad_telemetry"]
        accounted = self.published == self.log == self.rows["bronze"] == decoded
        return accounted and not self.missed and not self.false and not self.twice


def demo(wanted: Demo, console: Console) -> bool:
    """Run it, say what happens, and return whether all is as it should be."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pyrite-demo-") as name, ExitStack() as parts:
        folder = Path(name)
        console.print(f"broker: {folder}/data", highlight=False)
        mqtt, flight = parts.enter_context(_broker(folder))
        heard: list[Message] = []
        client = parts.enter_context(BlockingClient(mqtt, client_id="demo-subscriber"))
        alerts = client.subscribe("alerts/#", qos=1)

        def listen() -> None:
            """Take what has come by now."""
            while True:
                try:
                    message = alerts.get(timeout=0.2)
                except TimeoutError:
                    return
                heard.append(message)
                alert = json.loads(message.payload)
                console.print(
                    f"  alert {message.topic}: {alert['value']:.2f}, expected {alert['expected']:.2f}",
                    style="red",
                    highlight=False,
                )

        _command(folder, "pipeline", "init", "plant", "--broker", flight)
        console.print("pipeline: Spark starts, and runs once while the log is empty", highlight=False)
        pipeline = parts.enter_context(_process(folder / "plant", "pipeline", "run", "--continuous"))
        runs = _follow(pipeline, console)
        _until(lambda: bool(runs) or pipeline.poll() is not None, listen, LIMIT)
        console.print(
            f"devices: {wanted.devices}, each {wanted.rate}/s for {wanted.seconds} s", highlight=False
        )
        devices = parts.enter_context(_process(folder, "simulate", *_simulation(wanted, mqtt)))
        _wait(devices, listen, wanted.seconds + LIMIT)
        pipeline.send_signal(signal.SIGINT)
        _wait(pipeline, listen, LIMIT)
        console.print("pipeline: a last run, in a new process, for what came meanwhile", highlight=False)
        last = parts.enter_context(_process(folder / "plant", "pipeline", "run"))
        _follow(last, console)
        _wait(last, listen, LIMIT)
        listen()
        assert devices.stdout is not None
        published = int(devices.stdout.read().split()[1].rstrip(","))
        seen = _seen(folder, flight, published, heard)
    console.print(_summary(seen, time.monotonic() - began))
    return seen.good


def _simulation(wanted: Demo, broker: str) -> list[str]:
    options = {
        "broker": broker,
        "devices": wanted.devices,
        "rate": wanted.rate,
        "seconds": wanted.seconds,
        "faults": wanted.faults,
        "seed": wanted.seed,
        "speed": SPEED,
        "record": "faults.jsonl",
    }
    return ["--quiet", *(f"--{name}={value}" for name, value in options.items())]


def _seen(folder: Path, flight: str, published: int, heard: list[Message]) -> Seen:
    topics = read_log(flight, columns=("topic",))["topic"].to_pylist()
    faults = [json.loads(line) for line in (folder / "faults.jsonl").read_text().splitlines()]
    alerts = [json.loads(message.payload) for message in heard]
    return Seen(
        published,
        sum(not topic.startswith("alerts/") for topic in topics),
        row_counts(find_project(folder / "plant")),
        Counter((fault["device"], fault["field"]) for fault in faults),
        Counter((alert["device"], alert["field"]) for alert in alerts),
        len(alerts) - len({alert["id"] for alert in alerts}),
    )


def _summary(seen: Seen, seconds: float) -> Table:
    table = Table(title=f"{'all is well' if seen.good else 'NOT AS IT SHOULD BE'}, after {seconds:.0f} s")
    table.add_column("what was seen")
    table.add_column("", justify="right")
    rows = seen.rows
    for what, count in (
        ("messages published, and acknowledged", seen.published),
        ("messages in the log, without alerts", seen.log),
        ("rows in bronze", rows["bronze"]),
        ("rows in silver_telemetry, decoded", rows["silver_telemetry"]),
        ("rows in bad_telemetry, malformed on purpose", rows["bad_telemetry"]),
        ("windows in topic_windows", rows["topic_windows"]),
        ("faults made on purpose", seen.faults.total()),
        ("alerts at the subscriber", seen.alerts.total()),
        ("faults without an alert", seen.missed.total()),
        ("alerts without a fault", seen.false.total()),
        ("alerts that came twice", seen.twice),
    ):
        table.add_row(what, f"{count:,}")
    return table


@contextmanager
def _broker(folder: Path) -> Iterator[tuple[str, str]]:
    """Start a broker; yield where it speaks MQTT, and where Flight."""
    listen = ("--listen", "mqtt://127.0.0.1:0", "--listen", "flight://127.0.0.1:0")
    with _process(folder, "serve", "--data", "data", "--log-level", "warning", *listen) as process:
        assert process.stdout is not None
        urls: dict[str, str] = {}
        for line in process.stdout:
            if line.startswith("listening on "):
                url = line.split()[2]
                urls[url.partition(":")[0]] = url
            if line.strip() == "pyrite ready":
                yield urls["mqtt"], urls["flight"]
                return
    raise ProjectError("the broker did not start")


@contextmanager
def _process(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command of Pyrite's, and end it if it still runs at the end."""
    command = [sys.executable, "-m", "pyrite", *arguments]
    # Ctrl-C is for us: we end them in order.
    process = subprocess.Popen(  # noqa: S603
        command, cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _command(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pyrite", *arguments]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)  # noqa: S603


def _follow(process: subprocess.Popen[str], console: Console) -> list[str]:
    """Show what a process says; return a list of it, which grows."""
    lines: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            console.print(f"  {line.rstrip()}", highlight=False, soft_wrap=True)
            lines.append(line)

    Thread(target=read, daemon=True).start()
    return lines


def _wait(process: subprocess.Popen[str], listen: Callable[[], None], limit: float) -> None:
    """Wait for the end of a process, and listen meanwhile."""
    _until(lambda: process.poll() is not None, listen, limit)
    if process.returncode:
        raise ProjectError(f"a process of it ended with code {process.returncode}")


def _until(over: Callable[[], bool], listen: Callable[[], None], limit: float) -> None:
    """Listen until something is over."""
    end = time.monotonic() + limit
    while not over():
        if time.monotonic() > end:
            raise ProjectError(f"it took more than {limit:.0f} s")
        listen()

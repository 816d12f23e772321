"""The demo: a broker, devices with faults, a pipeline and a subscriber to its alerts.

All run as separate processes, on free ports, in a temporary folder.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pyrite.client import BlockingClient, Message, read_log
from pyrite.pipeline.errors import PipelineError
from pyrite.pipeline.process import DemoProcess
from pyrite.pipeline.project import find_project
from pyrite.pipeline.tables import messages_read, row_counts

TIME_LIMIT = 900.0
"""Seconds for the whole demo, in addition to those in which devices publish."""
CLOCK_SPEED = 60
"""Speed of the devices' clocks, so that more is seen in less time."""
_LISTEN = ("--listen", "mqtt://127.0.0.1:0", "--listen", "flight://127.0.0.1:0")
_BROKER = ("serve", "--data", "data", "--log-level", "warning", *_LISTEN)


@dataclass(frozen=True)
class DemoOptions:
    """Parameters of the demo."""

    devices: int
    rate: int
    seconds: int
    faults: int
    seed: int


@dataclass(frozen=True)
class DemoCounts:
    """What was counted at the end."""

    published: int
    log: int
    read: int
    """Messages in the table quality."""
    rows: dict[str, int]
    faults: Counter[tuple[str, str]]
    """Device and field of each injected fault."""
    alerts: Counter[tuple[str, str]]
    """Device and field of each alert received."""
    twice: int
    """Alerts received more than once."""

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
        """True if every message is accounted for, and alerts match faults."""
        decoded = self.rows["silver_telemetry"] + self.rows["bad_telemetry"]
        accounted = self.published == self.log == self.read == decoded
        return accounted and not self.missed and not self.false and not self.twice


def demo(wanted: DemoOptions, console: Console, limit: float = TIME_LIMIT) -> bool:
    """Run the demo and print its progress; returns True if every count is right. Raises PipelineError."""
    began = time.monotonic()
    deadline = began + wanted.seconds + limit
    heard: list[Message] = []

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    def tell(line: str) -> None:
        say(f"  {line}")

    with tempfile.TemporaryDirectory(prefix="pyrite-demo-") as name, ExitStack() as parts:
        folder = Path(name)
        say(f"broker: {folder}/data")
        broker = parts.enter_context(DemoProcess("the broker", folder, *_BROKER))
        _until(lambda: "pyrite ready" in broker.lines, _pause, deadline, broker)
        mqtt, flight = (_url(broker, scheme) for scheme in ("mqtt", "flight"))
        client = parts.enter_context(BlockingClient(mqtt, client_id="demo-subscriber"))
        alerts = client.subscribe("alerts/#", qos=1)

        def listen() -> None:
            """Print the alerts that have arrived."""
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

        init = DemoProcess("pipeline init", folder, "pipeline", "init", "plant", "--broker", flight)
        _finish(parts.enter_context(init), listen, deadline, broker)
        plant = folder / "plant"
        say("pipeline: starting Spark, first run on the empty log")
        pipeline = DemoProcess("the pipeline", plant, "pipeline", "run", "--continuous", tell=tell)
        parts.enter_context(pipeline)
        _until(lambda: any(map(_is_run, pipeline.lines)), listen, deadline, broker, pipeline)
        say(f"devices: {wanted.devices}, each {wanted.rate}/s for {wanted.seconds} s")
        devices = parts.enter_context(
            DemoProcess("the devices", folder, "simulate", *_simulation(wanted, mqtt))
        )
        _finish(devices, listen, deadline, broker, pipeline)
        pipeline.interrupt()
        _finish(pipeline, listen, deadline, broker)
        say("pipeline: final run in a new process, for the remaining messages")
        last = parts.enter_context(DemoProcess("the final run", plant, "pipeline", "run", tell=tell))
        _finish(last, listen, deadline, broker)
        listen()
        published = int(devices.lines[-1].split()[1].rstrip(","))
        seen = _seen(folder, flight, published, heard)
    console.print(_summary(seen, time.monotonic() - began))
    return seen.good


def _is_run(line: str) -> bool:
    """True for the line that a pipeline prints after a run."""
    return line.startswith("run ")


def _url(broker: DemoProcess, scheme: str) -> str:
    """Return a listener's URL from the broker's output."""
    said = [line.split()[2] for line in broker.lines if line.startswith("listening on ")]
    return next(url for url in said if url.startswith(f"{scheme}://"))


def _simulation(wanted: DemoOptions, broker: str) -> list[str]:
    options = {
        "broker": broker,
        "devices": wanted.devices,
        "rate": wanted.rate,
        "seconds": wanted.seconds,
        "faults": wanted.faults,
        "seed": wanted.seed,
        "speed": CLOCK_SPEED,
        "record": "faults.jsonl",
    }
    return ["--quiet", *(f"--{name}={value}" for name, value in options.items())]


def _seen(folder: Path, flight: str, published: int, heard: list[Message]) -> DemoCounts:
    topics = read_log(flight, columns=("topic",))["topic"].to_pylist()
    faults = [json.loads(line) for line in (folder / "faults.jsonl").read_text().splitlines()]
    alerts = [json.loads(message.payload) for message in heard]
    return DemoCounts(
        published,
        sum(not topic.startswith("alerts/") for topic in topics),
        messages_read(find_project(folder / "plant")),
        row_counts(find_project(folder / "plant")),
        Counter((fault["device"], fault["field"]) for fault in faults),
        Counter((alert["device"], alert["field"]) for alert in alerts),
        len(alerts) - len({alert["id"] for alert in alerts}),
    )


def _summary(seen: DemoCounts, seconds: float) -> Table:
    table = Table(
        title=f"{'all counts are right' if seen.good else 'COUNTS ARE WRONG'}, after {seconds:.0f} s"
    )
    table.add_column("count of")
    table.add_column("", justify="right")
    rows = seen.rows
    for what, count in (
        ("messages published and acknowledged", seen.published),
        ("messages in the log, without alerts", seen.log),
        ("messages that the pipeline read", seen.read),
        ("rows in silver_telemetry (decoded)", rows["silver_telemetry"]),
        ("rows in bad_telemetry (malformed on purpose)", rows["bad_telemetry"]),
        ("windows in topic_windows", rows["topic_windows"]),
        ("injected faults", seen.faults.total()),
        ("alerts received", seen.alerts.total()),
        ("faults without an alert", seen.missed.total()),
        ("alerts without a fault", seen.false.total()),
        ("alerts received twice", seen.twice),
    ):
        table.add_row(what, f"{count:,}")
    return table


def _finish(part: DemoProcess, listen: Callable[[], None], deadline: float, *needed: DemoProcess) -> None:
    """Wait until a process has ended; raises PipelineError if it failed."""
    _until(lambda: part.ended, listen, deadline, *needed)
    if part.code:
        raise part.error()


def _until(
    over: Callable[[], bool], listen: Callable[[], None], deadline: float, *needed: DemoProcess
) -> None:
    """Receive alerts until a condition holds; raises PipelineError if a needed process ends, or at the
    deadline.
    """
    while not over():
        for part in needed:
            if part.ended and not over():
                raise part.error()
        if time.monotonic() > deadline:
            raise PipelineError("the demo took too long; reduce --devices or --seconds")
        listen()


def _pause() -> None:
    time.sleep(0.05)

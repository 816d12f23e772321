"""The whole of it at once: a broker, devices with faults, the pipeline, and a subscriber to its alerts.

Everything is a process of its own, as in earnest, on free ports, in a folder that goes at the end.
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
from pyrite.pipeline.part import Part, PartFailed
from pyrite.pipeline.project import find_project
from pyrite.pipeline.tables import row_counts

LIMIT = 900.0
"""Seconds that all of it may take, besides those in which devices send."""
SPEED = 60
"""The devices' clocks run so much faster, so that there is more to see."""
_LISTEN = ("--listen", "mqtt://127.0.0.1:0", "--listen", "flight://127.0.0.1:0")
_BROKER = ("serve", "--data", "data", "--log-level", "warning", *_LISTEN)


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


def demo(wanted: Demo, console: Console, limit: float = LIMIT) -> bool:
    """Run it, say what happens, and return whether all is as it should be; PartFailed if a process fails."""
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
        broker = parts.enter_context(Part("the broker", folder, *_BROKER))
        _until(lambda: "pyrite ready" in broker.lines, _pause, deadline, broker)
        mqtt, flight = (_url(broker, scheme) for scheme in ("mqtt", "flight"))
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

        init = Part("pipeline init", folder, "pipeline", "init", "plant", "--broker", flight)
        _finish(parts.enter_context(init), listen, deadline, broker)
        plant = folder / "plant"
        say("pipeline: Spark starts, and runs once while the log is empty")
        pipeline = Part("the pipeline", plant, "pipeline", "run", "--continuous", tell=tell)
        parts.enter_context(pipeline)
        _until(lambda: any(map(_is_run, pipeline.lines)), listen, deadline, broker, pipeline)
        say(f"devices: {wanted.devices}, each {wanted.rate}/s for {wanted.seconds} s")
        devices = parts.enter_context(Part("the devices", folder, "simulate", *_simulation(wanted, mqtt)))
        _finish(devices, listen, deadline, broker, pipeline)
        pipeline.interrupt()
        _finish(pipeline, listen, deadline, broker)
        say("pipeline: a last run, in a new process, for what came meanwhile")
        last = parts.enter_context(Part("the last run", plant, "pipeline", "run", tell=tell))
        _finish(last, listen, deadline, broker)
        listen()
        published = int(devices.lines[-1].split()[1].rstrip(","))
        seen = _seen(folder, flight, published, heard)
    console.print(_summary(seen, time.monotonic() - began))
    return seen.good


def _is_run(line: str) -> bool:
    """Tell whether a pipeline says that a run is done."""
    return line.startswith("run ")


def _url(broker: Part, scheme: str) -> str:
    """Return where a broker listens, as it has said."""
    said = [line.split()[2] for line in broker.lines if line.startswith("listening on ")]
    return next(url for url in said if url.startswith(f"{scheme}://"))


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


def _finish(part: Part, listen: Callable[[], None], deadline: float, *needed: Part) -> None:
    """Wait until a process has done its work; PartFailed if it could not."""
    _until(lambda: part.ended, listen, deadline, *needed)
    if part.code:
        raise part.error()


def _until(over: Callable[[], bool], listen: Callable[[], None], deadline: float, *needed: Part) -> None:
    """Listen until something is over; PartFailed if a process that is needed for it ends, or time is up."""
    while not over():
        for part in needed:
            if part.ended and not over():
                raise part.error()
        if time.monotonic() > deadline:
            raise PartFailed("it takes too long; with fewer --devices and --seconds there is less to do")
        listen()


def _pause() -> None:
    time.sleep(0.05)

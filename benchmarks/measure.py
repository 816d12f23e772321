"""One run of one scenario against one fresh broker process, and the median of several runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import disk, generator, loop, replay, scan
from .brokers import DATA, Broker, Running, running
from .generator import Figures, MeasurementError
from .scenarios import Scenario

SETTLE = 1.0  # seconds of rest before memory is read
FAULTS = ("lost", "duplicated", "out_of_order", "misrouted", "damaged", "protocol_errors", "unacknowledged")


@dataclass
class Series:
    """The runs of one scenario with one broker."""

    runs: list[Figures] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def median(self, figure: str) -> float | None:
        """Return the median of this figure over the runs that succeeded; None without any."""
        values = [run[figure] for run in self.runs if figure in run]
        return statistics.median(values) if values else None

    def spread(self, figure: str) -> tuple[float, float] | None:
        """Return the least and the greatest value of this figure."""
        values = [run[figure] for run in self.runs if figure in run]
        return (min(values), max(values)) if values else None

    def faults(self) -> dict[str, int]:
        """Return what went wrong with messages, summed over all runs: lost, duplicated and so on."""
        sums = {fault: int(sum(run.get(fault, 0) for run in self.runs)) for fault in FAULTS}
        return {fault: count for fault, count in sums.items() if count}


def _processes(pid: int) -> list[int]:
    """The broker's process and those it started, for their CPU time and memory count too."""
    children = [file.read_text().split() for file in Path(f"/proc/{pid}/task").glob("*/children")]
    return [pid, *(process for group in children for child in group for process in _processes(int(child)))]


def _kilobytes(path: Path, key: str) -> int:
    return sum(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(key + ":"))


def _pss(pids: Sequence[int]) -> int:
    """Proportional set size in bytes: private pages, and a fair share of the shared ones."""
    return 1024 * sum(_kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss") for pid in pids)


def _rss(pids: Sequence[int], key: str = "VmRSS") -> int:
    return 1024 * sum(_kilobytes(Path(f"/proc/{pid}/status"), key) for pid in pids)


def run_once(scenario: Scenario, broker: Broker, seconds: float) -> Figures:
    """Start the broker, put the scenario's load on it, stop it, and return every figure."""
    seconds = max(seconds, broker.least_seconds, scenario.seconds)
    with running(broker, scenario.setup) as started:
        pids = _processes(started.process.pid)
        times = ["--seconds", str(seconds), "--warmup", str(min(scenario.warmup, seconds))]
        window = ["--window", "100"] if broker.slow else []
        common = ["--port", str(started.port), "--pid", ",".join(map(str, pids)), *times, *window]
        try:
            if scenario.arguments[0] == "connect":
                return _connect_and_weigh([*scenario.arguments[1:], *common], pids)
            before = disk.bare_writes() if scenario.probe == "bare writes" else []
            empty = disk.used(started.folder)
            figures = generator.run([*scenario.arguments, *common])
            if scenario.then:
                second = generator.run([*scenario.then, *common])
                figures |= {fault: figures[fault] + second[fault] for fault in FAULTS}
            figures["peak_memory"] = _rss(pids, "VmHWM")
            figures["peak_memory_mib"] = figures["peak_memory"] / 2**20
        except (FileNotFoundError, ProcessLookupError):
            raise MeasurementError("the broker's process ended during the run") from None
        match scenario.probe:
            case "bare writes":
                _compare_with_disk(figures, sorted([*before, *disk.bare_writes()]))
            case "longest block":
                figures["longest_block_ms"] = loop.longest_block_ms(started.port)
            case "scan":
                _scan(figures, started)
            case "stored bytes":
                figures["stored_bytes"] = (disk.used(started.folder) - empty) / figures["total_sent"]
            case "replay":
                figures |= replay.measure(started.port)
    messages = figures["messages_out"] or figures["messages_acknowledged"]
    figures["broker_us_per_message"] = 1e6 * figures["broker_cpu_seconds"] / max(1, messages)
    return _with_shares(figures)


def _compare_with_disk(figures: Figures, bare: Sequence[float]) -> None:
    figures["bare_write_us"] = statistics.median(bare)
    figures["bare_write_p99_us"] = bare[len(bare) * 99 // 100]
    figures["bare_writes"] = figures["p50_us"] / figures["bare_write_us"]


def _scan(figures: Figures, started: Running) -> None:
    """Read what the broker wrote, once it has ended; what was acknowledged and is not there is lost."""
    started.stop()
    figures |= scan.measure(started.folder / DATA)
    surplus = figures["scanned"] - figures["total_sent"]
    figures["lost" if surplus < 0 else "duplicated"] += abs(surplus)


def _with_shares(figures: Figures) -> Figures:
    """Add how many cores the broker used, the generator, and all else: what shared the machine."""
    figures["broker_busy"] = figures["broker_cpu_seconds"] / figures["seconds"]
    figures["generator_busy"] = figures["generator_cpu_seconds"] / figures["seconds"]
    figures["other_busy"] = figures["other_cpu_seconds"] / figures["seconds"]
    return figures


def _connect_and_weigh(arguments: Sequence[str], pids: Sequence[int]) -> Figures:
    time.sleep(SETTLE)
    pss, rss = _pss(pids), _rss(pids)
    with generator.holding_connections(arguments) as figures:
        time.sleep(SETTLE)
        figures["bytes_per_connection"] = (_pss(pids) - pss) / figures["connections"]
        figures["rss_per_connection"] = (_rss(pids) - rss) / figures["connections"]
        figures["peak_memory"] = _rss(pids, "VmHWM")
        figures["idle_memory"] = pss
        figures["broker_us_per_connection"] = 1e6 * figures["broker_cpu_seconds"] / figures["connections"]
        return _with_shares(figures)


def ceiling(scenario: Scenario, seconds: float, runs: int) -> Figures:
    """Run the scenario's load against the generator's own byte-forwarder, no broker; return the best run."""
    times = ["--seconds", str(seconds), "--warmup", str(min(scenario.warmup, seconds))]
    command = ["ceiling", *scenario.arguments[1:], *times]
    return max((_with_shares(generator.run(command)) for _ in range(runs)), key=lambda f: f["out_per_second"])

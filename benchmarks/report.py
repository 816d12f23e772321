"""The comparison as a page: benchmarks/RESULTS.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path

from . import disk
from .comparison import Comparison
from .scenarios import ALL, COMPILED, COMPILED_EPHEMERAL, EPHEMERAL, ITSELF, PYRITE

INTRODUCTION = """\
Written by `make bench` (`python -m benchmarks`); not edited by hand. Each figure is the median of {runs}
runs of {seconds:g} s (after a warm-up), each against a fresh process; the brokers take turns. One load
generator for all, [load.c](load.c), on the same machine over loopback. Payloads are random: JSON objects of
58 to 172 bytes, no two alike; in floods, bytes. The generator knows every message by publisher and sequence
number, and keeps a bounded number of them under way, so no broker is made to drop any."""

VIEWS = {
    PYRITE: """\
Pyrite as it comes: every message is written to the log, and a QoS 1 or 2 message is acknowledged when it is
on the disk (fdatasync). nats-sync does the same, with `sync_interval: always`; nats as it comes, and
mosquitto, acknowledge what only memory holds. Beside `pyrite --ephemeral` stands what share of its
throughput Pyrite keeps with its log on.""",
    COMPILED: """\
The same with the modules compiled that handle messages (`make wheel`).""",
    EPHEMERAL: """\
Pyrite with `--ephemeral`, which keeps nothing on a disk, as its peers here.""",
    COMPILED_EPHEMERAL: """\
The same with compiled modules.""",
}

RATIOS = """\
Pyrite's figure divided by the peer's; for latency, time and memory less is better. ✓ and ✗ tell whether
the floor, in brackets, is reached: of the ratio, or beside Pyrite's own figure, of that. Rows without floors
are for information. An asterisk: the generator was at least 90 % busy, so the broker might do more than
shown.

Two things to know when reading them. In the scenarios `flood-*` a publisher repeats one topic and one size:
the easiest work there is for Pyrite, and rare. And mosquitto's accept queue has 100 places: in `connect`
clients come faster than that, and those turned away come again after a second; `connect-gentle` compares the
brokers without it."""

FIGURES = """\
The spread, least to most, is of the figure that counts in the scenario. CPU is the broker's time per
message delivered (without subscribers: acknowledged). Peak memory is the broker's largest resident size.
Latency in a closed loop is mostly the number of messages under way divided by the throughput; only
`telemetry-pairs` and `qos1-single` show what a client would see. Without subscribers it is that of the
PUBACK; in `catch-up` it includes the absence. `loop-block` shows its first load, `scan` the load that
filled the log. `broker`, `generator` and `others` are the CPU time that the broker took, the generator's
one thread, and whatever else ran on the machine meanwhile, as shares of one core. Others should be near
0 %: where they are not, figures are too low."""

CEILING = """\
The same load against no broker, the best of up to three runs: a forked process that only moves the bytes
from publishers to subscribers with read and write. With one packet per write, which is a TCP segment of
its own (else it would be chance how many TCP puts together), nine tenths of the generator's time are the
kernel's, sending over loopback (about 4.5 µs a write on the machine this was written on), and no generator
can save them; a broker that is busier than the forwarder, and so is woken
less often, can exceed it."""

BROKERS = """\
How each broker is configured stands in [brokers.py](brokers.py). nats-server speaks MQTT 3.1.1 only,
keeps QoS 1 and 2 messages in JetStream (here on a RAM disk, if there is one) and uses several cores;
nats-sync is the same program with its store on the disk above, synced before each acknowledgement, and its
runs take at least 6 s. mosquitto keeps everything in memory. amqtt has a window of 100 messages and takes
part in the basic scenarios only."""

DISK = """\
Pyrite's log and the store of nats-sync are there. The bare write, of 1 KiB appended to a file and then
fdatasync, is measured {count} times before and after each run of `qos1-single`."""

ROUTING = """\
The subscription tree alone, in one process (`python -m benchmarks.routing`). Half of the filters have
wildcards."""


def _rows(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    titles = list(header)
    lines = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def markdown(comparison: Comparison) -> str:
    """Return the text of RESULTS.md."""
    missed, faults = comparison.missed(), comparison.faults()
    lines = [
        "# Benchmarks: what was measured",
        "",
        INTRODUCTION.format(runs=comparison.runs, seconds=comparison.seconds),
        "",
        *([f"**{disturbance}**", ""] if (disturbance := comparison.disturbance()) else []),
        "![ratios](results.png)",
        "",
        "## Floors not reached",
        "",
        *([f"- {sentence}" for sentence in missed] or ["None: every floor below is reached."]),
        "",
        "## Ratios",
        "",
        RATIOS,
        "",
        *_ratio_sections(comparison),
        "## Every figure",
        "",
        FIGURES,
        "",
        *_figure_rows(comparison),
        "",
        *_connection_rows(comparison),
        "",
        "## Lost, repeated or reordered messages, and failed runs",
        "",
        *([f"- {sentence}" for sentence in faults] or ["None, with any broker, in any run."]),
        "",
        *_disk_section(comparison),
        *_ceiling_section(comparison),
        *_routing_section(comparison),
        "## The machine and the brokers",
        "",
        *[f"- {key}: {value}" for key, value in comparison.machine.items()],
        *[f"- {name}: {version}" for name, version in comparison.versions.items()],
        *[f"- {line}" for line in comparison.absent],
        "",
        BROKERS,
        "",
    ]
    return "\n".join(lines)


def _ratio_sections(comparison: Comparison) -> list[str]:
    lines = []
    for ours, scenarios in comparison.views().items():
        peers = comparison.peers(ours)
        compared = [title for peer in peers for title in (peer, f"to {peer}")]
        rows = []
        for scenario in scenarios:
            row = [f"`{scenario.id}`", scenario.title, scenario.metric.title]
            row.append(
                comparison.figure_text(scenario, ours) + comparison.verdict(scenario, ours, ITSELF, "✓", "✗")
            )
            for peer in peers:
                row.append(comparison.figure_text(scenario, peer))
                row.append(comparison.ratio_text(scenario, ours, peer, "✓", "✗"))
            rows.append(row)
        lines += [f"### {ours}", "", VIEWS[ours], ""]
        lines += [*_rows(["id", "scenario", "figure", ours, *compared], rows), ""]
    return lines


def _figure_rows(comparison: Comparison) -> list[str]:
    header = ["id", "broker", "in/s", "out/s", "least to most", "CPU/message", "p50", "p99", "max",
              "peak memory", "broker", "generator", "others"]  # fmt: skip
    rows = []
    metrics = {scenario.id: scenario.metric for scenario in ALL}
    for (run_id, broker), series in comparison.series.items():
        metric = metrics[run_id]
        spread = series.spread(metric.figure) if series.median("out_per_second") is not None else None
        if spread is None:
            continue
        values = {figure: series.median(figure) or 0 for figure in series.runs[0]}
        rows.append([
            f"`{run_id}`", broker, f"{values['in_per_second']:,.0f}", f"{values['out_per_second']:,.0f}",
            f"{metric.write(spread[0])} to {metric.write(spread[1])}",
            f"{values['broker_us_per_message']:.2f} µs", f"{values['p50_us']:,.0f} µs",
            f"{values['p99_us']:,.0f} µs", f"{values['max_us']:,.0f} µs",
            f"{values['peak_memory'] / 2**20:.1f} MiB", f"{values['broker_busy']:.0%}",
            f"{values['generator_busy']:.0%}", f"{values['other_busy']:.0%}",
        ])  # fmt: skip
    return _rows(header, rows)


def _connection_rows(comparison: Comparison) -> list[str]:
    header = ["id", "broker", "connections", "seconds", "least to most", "CPU/connection", "PSS/connection",
              "RSS/connection", "memory before", "peak memory", "broker", "generator", "others"]  # fmt: skip
    rows = []
    for (run_id, broker), series in comparison.series.items():
        spread = series.spread("seconds") if series.median("connections") else None
        if spread is None:
            continue
        values = {figure: series.median(figure) or 0 for figure in series.runs[0]}
        rows.append([
            f"`{run_id}`", broker, f"{values['connections']:,.0f}", f"{values['seconds']:.2f}",
            f"{spread[0]:.2f} to {spread[1]:.2f}", f"{values['broker_us_per_connection']:.0f} µs",
            f"{values['bytes_per_connection']:,.0f} B", f"{values['rss_per_connection']:,.0f} B",
            f"{values['idle_memory'] / 2**20:.1f} MiB", f"{values['peak_memory'] / 2**20:.1f} MiB",
            f"{values['broker_busy']:.0%}",
            f"{values['generator_busy']:.0%}", f"{values['other_busy']:.0%}",
        ])  # fmt: skip
    return _rows(header, rows) if rows else []


def _disk_section(comparison: Comparison) -> list[str]:
    runs = [run for series in comparison.series.values() for run in series.runs if "bare_write_us" in run]
    if not runs:
        return []
    middle = statistics.median(run["bare_write_us"] for run in runs)
    p99 = statistics.median(run["bare_write_p99_us"] for run in runs)
    return [
        "## The disk",
        "",
        DISK.format(count=disk.BARE_WRITES),
        "",
        f"- {disk.filesystem(disk.folder())}",
        f"- a bare write: median {middle:,.0f} µs, p99 {p99:,.0f} µs",
        "",
    ]


def _ceiling_section(comparison: Comparison) -> list[str]:
    if not comparison.ceilings:
        return []
    rows = [
        [f"`{name}`", f"{figures['out_per_second']:,.0f}/s", f"{figures['generator_busy']:.0%}"]
        for name, figures in comparison.ceilings.items()
    ]
    return [
        "## The generator's own ceiling",
        "",
        CEILING,
        "",
        *_rows(["id", "messages delivered a second", "generator"], rows),
        "",
    ]


def _routing_section(comparison: Comparison) -> list[str]:
    if not comparison.routing:
        return []
    return [
        "## Routing among a million filters",
        "",
        ROUTING,
        "",
        *_rows(["what", "measured"], comparison.routing),
        "",
    ]


def write_markdown(comparison: Comparison, path: Path) -> None:
    """Write RESULTS.md."""
    path.write_text(markdown(comparison), encoding="utf-8")

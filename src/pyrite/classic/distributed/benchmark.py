"""Shared by both benchmarks: client processes, progress, and a table of results."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty
from typing import NamedTuple
from uuid import uuid4

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from pyrite.classic import common
from pyrite.classic.distributed.publisher import Publisher
from pyrite.classic.distributed.server import HOST, PORT

REPORT_INTERVAL = 500
"""Operations between two progress reports of a client."""
CHECK_AFTER = 1.0
"""Seconds without a report after which the client processes are checked: one may have been killed."""


class Benchmark(NamedTuple):
    """An operation to measure. Each function receives the publisher and a topic prefix for its client."""

    name: str
    unit: str
    """The unit that is counted."""
    prepare: Callable[[Publisher, str], None]
    variants: Mapping[str, Callable[[Publisher, str, int, int], None]]
    """Variants of the operation; each also receives the number of the first operation, and how many to do."""
    clean: Callable[[Publisher, str, int], None]
    """Clean up; also receives the number of operations done."""


class Report(NamedTuple):
    """A client's progress."""

    client: int
    done: int
    at: float
    problem: str = ""


def _client(
    benchmark: Benchmark,
    variant: str,
    number: int,
    count: int,
    host: str,
    port: int,
    reports: multiprocessing.Queue[Report],
) -> None:
    prefix = f"benchmark-{uuid4().hex}"
    try:
        publisher = Publisher(host, port)
        benchmark.prepare(publisher, prefix)
        reports.put(Report(number, 0, time.time()))
        for first in range(0, count, REPORT_INTERVAL):
            size = min(REPORT_INTERVAL, count - first)
            benchmark.variants[variant](publisher, prefix, first, size)
            reports.put(Report(number, first + size, time.time()))
        benchmark.clean(publisher, prefix, count)
        publisher.close()
    except Exception as error:  # reported by the main process, whatever it is
        reports.put(Report(number, 0, time.time(), str(error)))


class BenchmarkError(OSError):
    """A client failed."""


def _measure(
    benchmark: Benchmark, variant: str, asked: argparse.Namespace, console: Console
) -> tuple[dict[int, float], dict[int, float]]:
    """Run all clients; returns when each started and ended."""
    context = multiprocessing.get_context("spawn")
    reports: multiprocessing.Queue[Report] = context.Queue()
    clients = [
        context.Process(
            target=_client,
            args=(benchmark, variant, number, asked.count, asked.host, asked.port, reports),
            daemon=True,
        )
        for number in range(asked.clients)
    ]
    # A terminal sends Ctrl-C to the clients as well. They start with it blocked, and end with this process.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for client in clients:
            client.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    began: dict[int, float] = {}
    ended: dict[int, float] = {}
    done = dict.fromkeys(range(asked.clients), 0)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(f"{benchmark.unit}, {variant}", total=asked.clients * asked.count)
        while len(ended) < asked.clients:
            try:
                report = reports.get(timeout=CHECK_AFTER)
            except Empty:
                if any(client.exitcode for client in clients):
                    raise BenchmarkError("a client process has died") from None
                continue
            if report.problem:
                raise BenchmarkError(f"client {report.client}: {report.problem}")
            began.setdefault(report.client, report.at)
            done[report.client] = report.done
            bar.update(task, completed=sum(done.values()))
            if report.done == asked.count:
                ended[report.client] = report.at
    for client in clients:
        client.join()
    return began, ended


def run(benchmark: Benchmark, arguments: Sequence[str] | None = None) -> int:
    """Run a benchmark and print its results; returns the exit code."""
    parser = argparse.ArgumentParser(prog=common.name(), description=f"the throughput of {benchmark.name}")
    parser.add_argument("--host", default=HOST, help="where the server listens (default: %(default)s)")
    parser.add_argument("--port", type=common.port, default=PORT, help="(default: %(default)s)")
    parser.add_argument(
        "--clients", type=common.positive, default=4, help="client processes (default: %(default)s)"
    )
    parser.add_argument(
        "--count",
        type=common.positive,
        default=5_000,
        help=f"{benchmark.unit} of each client, each way (default: %(default)s)",
    )
    asked = parser.parse_args(arguments)
    console = Console()
    table = Table(title=benchmark.name)
    for column in ("how", "client", benchmark.unit, "seconds", f"{benchmark.unit}/s"):
        table.add_column(column, justify="left" if column == "how" else "right")
    for variant in benchmark.variants:
        began, ended = _measure(benchmark, variant, asked, console)
        for number in sorted(ended):
            table.add_row(variant, str(number), *_figures(asked.count, ended[number] - began[number]))
        seconds = max(ended.values()) - min(began.values())
        table.add_row(
            variant, "all", *_figures(asked.clients * asked.count, seconds), style="bold", end_section=True
        )
    console.print(table)
    return 0


def _figures(count: int, seconds: float) -> tuple[str, str, str]:
    return f"{count:,}", f"{seconds:.2f}", f"{count / max(seconds, 1e-6):,.0f}"

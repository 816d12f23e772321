"""What both benchmarks share: several client processes at once, progress, and a table of results."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from pyrite.classic import common  # noqa: F401
from pyrite.classic.distributed.broker import HOST, PORT, Publisher
from pyrite.client.line import LineError

PIECE = 5_000
"""Operations between two reports of a client's progress."""

Work = Callable[[Publisher, int, int, int], None]
"""Do operations of a client: the publisher, the client's number, the first operation and how many."""
Report = tuple[int, int, float, str]
"""A client's number, how many operations it has done, when, and what went wrong."""


def _client(
    work: Work, number: int, count: int, where: tuple[str, int], reports: multiprocessing.Queue[Report]
) -> None:
    try:
        publisher = Publisher(*where)
        reports.put((number, 0, time.time(), ""))
        for start in range(0, count, PIECE):
            size = min(PIECE, count - start)
            work(publisher, number, start, size)
            reports.put((number, start + size, time.time(), ""))
        publisher.close()
    except (OSError, LineError) as error:
        reports.put((number, -1, time.time(), str(error)))


def run(title: str, what: str, work: Work, arguments: Sequence[str] | None = None) -> int:
    """Run a benchmark: `what` is counted."""
    parser = argparse.ArgumentParser(prog=Path(sys.argv[0]).name, description=title)
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--clients", type=int, default=4, help="client processes (default: 4)")
    parser.add_argument("--count", type=int, default=50_000, help=f"{what} of each (default: 50000)")
    asked = parser.parse_args(arguments)
    context = multiprocessing.get_context("spawn")
    reports: multiprocessing.Queue[Report] = context.Queue()
    where = (asked.host, asked.port)
    clients = [
        context.Process(target=_client, args=(work, number, asked.count, where, reports), daemon=True)
        for number in range(asked.clients)
    ]
    for client in clients:
        client.start()
    began: dict[int, float] = {}
    ended: dict[int, float] = {}
    console = Console()
    bar = Progress(TextColumn(what), BarColumn(), MofNCompleteColumn(), console=console)
    with bar:
        task = bar.add_task(what, total=asked.clients * asked.count)
        done = dict.fromkeys(range(asked.clients), 0)
        while len(ended) < asked.clients:
            number, so_far, when, wrong = reports.get(timeout=60)
            if wrong:
                console.print(f"client {number}: {wrong}", style="red")
                return 1
            began.setdefault(number, when)
            done[number] = so_far
            bar.update(task, completed=sum(done.values()))
            if so_far == asked.count:
                ended[number] = when
    for client in clients:
        client.join(10)
    table = Table(title=title)
    for column in ("client", what, "seconds", f"{what}/s"):
        table.add_column(column, justify="right")
    for number in sorted(ended):
        seconds = ended[number] - began[number]
        table.add_row(str(number), f"{asked.count:,}", f"{seconds:.2f}", f"{asked.count / seconds:,.0f}")
    total, seconds = asked.clients * asked.count, max(ended.values()) - min(began.values())
    table.add_row("all", f"{total:,}", f"{seconds:.2f}", f"{total / seconds:,.0f}", style="bold")
    console.print(table)
    return 0

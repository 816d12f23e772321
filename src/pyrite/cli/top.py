"""`pyrite top`: what a broker is doing, live, from its figures under $SYS."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from rich.console import Console
from rich.live import Live

from pyrite.cli.connection import Connection, add_connection_options
from pyrite.cli.errors import CommandError, UsageError, run_command
from pyrite.cli.top_figures import PIPELINES, PREFIX, Reading, Readings
from pyrite.cli.top_view import View
from pyrite.client import SubscribeError, Subscription

PROGRAM = "pyrite top"
PATIENCE = 5.0
"""Seconds in which the first figures must have come."""
QUIET = 0.2
"""Seconds in which no figure came that was not there before, after which all have come."""

_EXAMPLES = """\
examples:
  pyrite top                                     the broker on this machine
  pyrite top --url mqtts://ann@broker.example --pw secret --cafile ca.pem
  pyrite top --once                              one reading, as a table
  pyrite top --json --interval 10 >> figures.jsonl

The figures are those under $SYS/broker/, which the user must be allowed to subscribe to; Spark pipelines are
shown to those who may subscribe to $pipelines/+. Ctrl-C ends it.
exit codes: 0 done or interrupted; 2 wrong options; the broker's reason code if it refused; 1 any other
failure."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "top",
        help="watch what a broker is doing, live",
        usage="pyrite top [options]",
        description="Show rates, clients, subscriptions and the log of a running broker.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="time between readings (default: 1)"
    )
    parser.add_argument("--once", action="store_true", help="show one reading, and end")
    parser.add_argument("--json", action="store_true", help="print each reading as a line of JSON")
    add_connection_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show figures as the options say; returns the exit code."""
    return run_command(PROGRAM, args, _watch)


async def _watch(args: argparse.Namespace) -> int:
    if not 0.1 <= args.interval <= 86_400:
        raise UsageError("--interval is a time in seconds, from 0.1 to 86400.")
    if sys.stdout is None:  # the shell's >&-
        raise UsageError("stdout is closed: there is nowhere to print figures to.")
    connection = Connection(PROGRAM, args, reconnect=not args.once)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, connection.stop, 0)
    return await connection.run(_Watcher(connection, args).work)


class _Watcher:
    """Gathers figures, and shows a reading of them again and again."""

    def __init__(self, connection: Connection, args: argparse.Namespace) -> None:
        self._connection = connection
        self._args = args
        self._readings = Readings(time.monotonic)

    async def work(self) -> int:
        """Show figures until interrupted; or once."""
        subscribe = self._connection.client.subscribe
        gathering = [asyncio.ensure_future(self._gather(await subscribe(f"{PREFIX}#")))]
        try:
            with suppress(SubscribeError):  # who may not see pipelines is shown the rest
                pipelines = await subscribe(f"{PIPELINES}+")
                gathering.append(asyncio.ensure_future(self._gather_pipelines(pipelines)))
            await self._first()
            with _Output(self._args) as show:
                await self._show(show)
        except BrokenPipeError:
            _write_nowhere()
        finally:
            for one in gathering:
                one.cancel()
        return 0

    async def _gather(self, messages: Subscription) -> None:
        async for message in messages:
            self._readings.take(message.topic, message.payload, message.retain)

    async def _gather_pipelines(self, messages: Subscription) -> None:
        async for message in messages:
            self._readings.take_pipeline(message.topic, message.payload)

    async def _first(self) -> None:
        """Wait until all figures have come that are there."""
        until = time.monotonic() + PATIENCE
        before = -1
        while self._readings.count != before or not before:
            if time.monotonic() > until and not self._readings.count:
                raise CommandError(
                    f"no figures came within {PATIENCE:.0f} seconds. Does the broker publish them "
                    "(mqtt.sys_interval), and may this user subscribe to $SYS/#?"
                )
            before = self._readings.count
            await asyncio.sleep(QUIET)

    async def _show(self, show: Callable[[Reading, str], None]) -> None:
        where = str(self._connection.endpoint)
        connected = self._connection.client.connected
        gone_at = 0.0
        while True:
            if connected.is_set():
                gone_at = 0.0
                show(self._readings.reading(), where)
            else:
                gone_at = gone_at or time.monotonic()
                self._readings.clear()
                away = f"{where} is away for {time.monotonic() - gone_at:.0f} s; waiting for it"
                show(Reading({}, {}, {}), away)
            if self._args.once:
                return
            await asyncio.sleep(self._args.interval)


class _Output:
    """Where readings go: a screen that is drawn anew, tables one after the other, or lines of JSON."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._json = args.json
        self._console = Console()
        self._live: Live | None = None
        if not args.json and not args.once and self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Callable[[Reading, str], None]:
        if self._live is not None:
            self._live.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _show(self, reading: Reading, title: str) -> None:
        if self._live is not None:
            self._live.update(View(reading, title), refresh=True)
        elif not reading.figures:
            return  # it is away, which was said on standard error
        elif self._json:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
            line = {"time": now, "rates": reading.rates, "figures": reading.values()}
            print(json.dumps(line | {"pipelines": reading.pipelines}), flush=True)
        else:
            self._console.print(View(reading, title))


def _write_nowhere() -> None:
    """Have what is still in the buffer go somewhere, or Python complains about it on its way out."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

"""`pyrite top`: a live view of a broker, from its metrics under $SYS."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from rich.console import Console
from rich.live import Live

from pyrite.cli.connection import CommandConnection, add_connection_options
from pyrite.cli.errors import CommandError, UsageError, discard_stdout, run_command
from pyrite.cli.top_metrics import PIPELINES, PREFIX, Sampler, TopSample
from pyrite.cli.top_view import View
from pyrite.client import SubscribeError, Subscription

PROGRAM = "pyrite top"
FIRST_METRICS_TIMEOUT = 5.0
"""Seconds to wait for the first metrics."""
SETTLE_TIME = 0.2
"""The first set of metrics is complete when none was added for this many seconds."""

_EXAMPLES = """\
examples:
  pyrite top                                     the local broker
  pyrite top --url mqtts://ann@broker.example --pw secret --cafile ca.pem
  pyrite top --once                              one sample, as a table
  pyrite top --json --interval 10 >> metrics.jsonl

The user must be allowed to subscribe to $SYS/#, and to $pipelines/+ to see Spark pipelines. Ctrl-C ends it.
exit codes: 0 done or interrupted; 2 wrong options; the broker's reason code if it refused; 1 any other
failure."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "top",
        help="watch a broker live",
        usage="pyrite top [options]",
        description="Show rates, clients, subscriptions and log metrics of a running broker.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="time between samples (default: 1)"
    )
    parser.add_argument("--once", action="store_true", help="show one sample and exit")
    parser.add_argument("--json", action="store_true", help="print samples as JSON lines")
    add_connection_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    return run_command(PROGRAM, args, _watch)


async def _watch(args: argparse.Namespace) -> int:
    if not 0.1 <= args.interval <= 86_400:
        raise UsageError("--interval must be from 0.1 to 86400 seconds.")
    if sys.stdout is None:  # the shell's >&-
        raise UsageError("stdout is closed: metrics cannot be printed.")
    connection = CommandConnection(PROGRAM, args, reconnect=not args.once)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, connection.stop, 0)
    return await connection.run(_Watcher(connection, args).work)


class _Watcher:
    """Collects metrics and shows a sample of them at every interval."""

    def __init__(self, connection: CommandConnection, args: argparse.Namespace) -> None:
        self._connection = connection
        self._args = args
        self._sampler = Sampler(time.monotonic)

    async def work(self) -> int:
        """Show metrics until interrupted, or once."""
        subscribe = self._connection.client.subscribe
        gathering = [asyncio.ensure_future(self._gather(await subscribe(f"{PREFIX}#")))]
        try:
            with suppress(SubscribeError):  # a user without access to pipelines sees the rest
                pipelines = await subscribe(f"{PIPELINES}+")
                gathering.append(asyncio.ensure_future(self._gather_pipelines(pipelines)))
            await self._first()
            with _Output(self._args) as show:
                await self._show(show)
        except BrokenPipeError:
            discard_stdout()
        finally:
            for one in gathering:
                one.cancel()
        return 0

    async def _gather(self, messages: Subscription) -> None:
        async for message in messages:
            self._sampler.take(message.topic, message.payload, message.retain)

    async def _gather_pipelines(self, messages: Subscription) -> None:
        async for message in messages:
            self._sampler.take_pipeline(message.topic, message.payload)

    async def _first(self) -> None:
        """Wait until the first set of metrics is complete."""
        until = time.monotonic() + FIRST_METRICS_TIMEOUT
        before = -1
        while self._sampler.count != before or not before:
            if time.monotonic() > until and not self._sampler.count:
                raise CommandError(
                    f"no metrics arrived within {FIRST_METRICS_TIMEOUT:.0f} seconds. Does the broker "
                    "publish them (mqtt.sys_interval), and may this user subscribe to $SYS/#?"
                )
            before = self._sampler.count
            await asyncio.sleep(SETTLE_TIME)

    async def _show(self, show: Callable[[TopSample, str], None]) -> None:
        where = str(self._connection.endpoint)
        connected = self._connection.client.connected
        gone_at = 0.0
        while True:
            if connected.is_set():
                gone_at = 0.0
                show(self._sampler.sample(), where)
            else:
                gone_at = gone_at or time.monotonic()
                self._sampler.clear()
                away = f"{where} has been unreachable for {time.monotonic() - gone_at:.0f} s; reconnecting"
                show(TopSample({}, {}, {}), away)
            if self._args.once:
                return
            await asyncio.sleep(self._args.interval)


class _Output:
    """Shows samples on a live screen, as tables one after another, or as JSON lines."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._json = args.json
        self._console = Console()
        self._live: Live | None = None
        if not args.json and not args.once and self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Callable[[TopSample, str], None]:
        if self._live is not None:
            self._live.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _show(self, sample: TopSample, title: str) -> None:
        if self._live is not None:
            self._live.update(View(sample, title), refresh=True)
        elif not sample.metrics:
            return  # disconnected, which was reported on stderr
        elif self._json:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
            line = {"time": now, "rates": sample.rates, "figures": sample.values()}
            print(json.dumps(line | {"pipelines": sample.pipelines}), flush=True)
        else:
            self._console.print(View(sample, title))

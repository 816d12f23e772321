"""`pyrite simulate`: devices that publish what they measure, and go wrong on purpose."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pyrite.cli.errors import CommandError, run_command

PROGRAM = "pyrite simulate"

_EXAMPLES = """\
examples:
  pyrite simulate                                        50 devices, a message a second each, for 30 seconds
  pyrite simulate --devices 5 --rate 10 --seconds 60     fewer, and faster
  pyrite simulate --rate 10 --faults 20 --record f.jsonl   20 faults, and a list of them
  pyrite simulate --rate 10 --speed 60                   a minute of the devices' time a second

Each device has a connection of its own and publishes with QoS 1 on devices/dev-NNN/telemetry, as in
  {"time": "2026-01-31T12:00:00.000Z", "temperature": 21.3, "vibration": 2.1, "battery": 87.5, "count": 17}
Faults are spikes (one value), drifts (15 values, further and further off) and dropouts (45 messages that
never come). The same seed makes the same values and the same faults.
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "simulate",
        help="publish as many devices would, with faults on purpose",
        description="Publish what simulated devices measure: temperature, vibration, battery and a count.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--broker", default="mqtt://127.0.0.1:1883", metavar="URL", help="default: %(default)s"
    )
    parser.add_argument("--devices", type=_count, default=50, metavar="N", help="default: 50")
    parser.add_argument(
        "--rate", type=_number, default=1.0, metavar="R", help="messages a second of each device (default: 1)"
    )
    parser.add_argument("--seconds", type=_number, default=30.0, metavar="N", help="how long (default: 30)")
    parser.add_argument("--faults", type=_whole, default=0, metavar="K", help="how many (default: 0)")
    parser.add_argument(
        "--malformed",
        type=_share,
        default=0.01,
        metavar="P",
        help="share of unreadable messages (default: 0.01)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="for all that is random (default: 1)"
    )
    parser.add_argument(
        "--speed",
        type=_number,
        default=1.0,
        metavar="X",
        help="how fast the devices' clocks run (default: 1)",
    )
    parser.add_argument(
        "--prefix", default="devices", help="the first level of the topics (default: devices)"
    )
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write each fault to it, a line of JSON each"
    )
    parser.add_argument("--quiet", action="store_true", dest="bare", help="without a progress bar")
    parser.set_defaults(quiet=False, run=lambda args: run_command(PROGRAM, args, _simulate))


def _count(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a number above 0, not {text!r}")


def _whole(text: str) -> int:
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a number, not {text!r}")


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if 0 < number < 1e9:
        return number
    raise argparse.ArgumentTypeError(f"expected a number above 0, not {text!r}")


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if 0 <= share <= 1:
        return share
    raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, not {text!r}")


async def _simulate(args: argparse.Namespace) -> int:
    from pyrite.client import ClientError
    from pyrite.simulate.run import Count, Options, Simulation

    options = Options(
        args.broker,
        args.devices,
        args.rate,
        args.seconds,
        args.faults,
        args.malformed,
        args.seed,
        args.speed,
        args.prefix,
        args.record,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), disable=args.bare, transient=True)
    task = progress.add_task("publishing", total=round(args.rate * args.seconds) * args.devices)

    def tell(count: Count) -> None:
        progress.update(task, completed=count.published, description=f"{count.faults} faults")

    try:
        simulation = Simulation(options, tell)
        with progress:
            count = await simulation.run()
    except ValueError as error:
        raise CommandError(str(error), 2) from None
    except ClientError as error:
        raise CommandError(
            f"{error}. Start a broker with `pyrite serve`, or name it with --broker."
        ) from None
    except OSError as error:
        raise CommandError(f"{args.record}: {error.strerror}") from None
    told = f"{count.malformed} malformed, {count.faults} faults"
    print(f"published {count.published}, all acknowledged; {told}")
    return 0

"""`pyrite simulate`: simulated devices that publish telemetry, with deliberate faults."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pyrite.cli.arguments import number_between, positive_int
from pyrite.cli.errors import CommandError, run_command

PROGRAM = "pyrite simulate"

_EXAMPLES = """\
examples:
  pyrite simulate                                          50 devices, one message a second each, for 30 s
  pyrite simulate --devices 5 --rate 10 --seconds 60       fewer devices, faster
  pyrite simulate --rate 30 --faults 20 --record f.jsonl   20 faults, listed in a file
  pyrite simulate --rate 10 --speed 60                     device clocks run 60 times as fast

Each device has its own connection and publishes with QoS 1 on devices/dev-NNN/telemetry:
  {"time": "2026-01-31T12:00:00.000Z", "temperature": 21.3, "vibration": 2.1, "battery": 87.5, "count": 17}
The first fault comes after 620 messages of a device, when its usual values are known.
A fault is a spike (one value), a drift (15 values, increasingly wrong) or a dropout (45 missing messages).
The same seed gives the same values and faults.
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "simulate",
        help="publish telemetry from simulated devices, with deliberate faults",
        description="Publish telemetry of simulated devices: temperature, vibration, battery and a counter.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--broker", default="mqtt://127.0.0.1:1883", metavar="URL", help="default: %(default)s"
    )
    parser.add_argument("--devices", type=positive_int, default=50, metavar="N", help="default: 50")
    parser.add_argument(
        "--rate", type=_positive, default=1.0, metavar="R", help="messages per second and device (default: 1)"
    )
    parser.add_argument("--seconds", type=_positive, default=30.0, metavar="N", help="duration (default: 30)")
    parser.add_argument("--faults", type=_whole, default=0, metavar="K", help="number of faults (default: 0)")
    parser.add_argument(
        "--malformed",
        type=number_between(0, 1, "a number from 0 to 1"),
        default=0.01,
        metavar="P",
        help="share of malformed messages (default: 0.01)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="random seed (default: 1)")
    parser.add_argument(
        "--speed",
        type=_positive,
        default=1.0,
        metavar="X",
        help="speed of the devices' clocks (default: 1)",
    )
    parser.add_argument("--prefix", default="devices", help="first level of the topics (default: devices)")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write the faults to this file, one JSON object per line"
    )
    parser.add_argument("--quiet", action="store_true", dest="bare", help="show no progress bar")
    parser.set_defaults(quiet=False, run=lambda args: run_command(PROGRAM, args, _simulate))


_positive = number_between(1e-9, 1e9, "a number above 0")


def _whole(text: str) -> int:
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number, not {text!r}")


async def _simulate(args: argparse.Namespace) -> int:
    from pyrite.client import ClientError
    from pyrite.simulate.run import Count, Simulation, SimulationOptions

    options = SimulationOptions(
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
            f"{error}. Start a broker with `pyrite serve`, or give its address with --broker."
        ) from None
    except OSError as error:
        raise CommandError(f"{args.record}: {error.strerror}") from None
    told = f"{count.malformed} malformed, {count.faults} faults"
    print(f"published {count.published} messages, all acknowledged; {told}")
    return 0

"""`python -m studies`: run an experiment with a real broker on this machine and write a report."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from studies.report import Report

FOLDER = "docs/studies"

_EXAMPLES = """\
examples:
  python -m studies tcp-flow-control                  what the windows do when a subscriber reads slowly
  python -m studies connections                       how many clients can be connected, and what stops them
  python -m studies udp-loss                          where datagrams are lost when a subscriber never reads
  python -m studies udp-loss --seconds 3 --out /tmp   a short run, its report elsewhere

Each needs root, tshark and matplotlib (`make lint` installs it into .venv), starts its own brokers on free
ports, changes nothing on the machine, and writes DIR/STUDY.md with plots and DIR/STUDY.json.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study that the command line names, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m studies",
        description="Run an experiment with a real broker on this machine and write a report with plots.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    studies = parser.add_subparsers(metavar="STUDY", required=True)
    _register_tcp(studies)
    _register_connections(studies)
    _register_udp(studies)
    args = parser.parse_args(arguments)
    exit_code: int = args.run(args)
    return exit_code


def _add(
    studies: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    example: str,
    seconds: float,
    meaning: str,
) -> argparse.ArgumentParser:
    parser = studies.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"examples:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, default=Path(FOLDER), metavar="DIR", help=f"where to (default: {FOLDER})"
    )
    parser.add_argument(
        "--seconds", type=_seconds, default=seconds, metavar="N", help=f"{meaning} (default: {seconds:g})"
    )
    return parser


def _register_tcp(studies: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        studies,
        "tcp-flow-control",
        "TCP's windows when a subscriber reads slowly, or not at all",
        "  python -m studies tcp-flow-control\n"
        "  python -m studies tcp-flow-control --seconds 5 --speed 200000\n",
        10,
        "how long each of its three experiments publishes",
    )
    parser.add_argument("--size", type=_count, default=1_000, help="bytes of a payload (default: 1000)")
    parser.add_argument("--rate", type=_count, default=20_000, help="messages a second (default: 20000)")
    parser.add_argument(
        "--speed",
        type=_count,
        default=1_000_000,
        help="bytes a second that the slow reader reads, and the slow link takes (default: 1000000)",
    )
    parser.set_defaults(run=_tcp_flow_control)


def _register_connections(studies: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        studies,
        "connections",
        "how many TCP clients can be connected at once, and what sets the limit",
        "  python -m studies connections\n  python -m studies connections --clients 5000 --limit 200\n",
        60,
        "how long the largest crowd has to come in",
    )
    parser.add_argument(
        "--clients", type=_count, default=30_000, help="as many are to be connected at once (default: 30000)"
    )
    parser.add_argument(
        "--limit", type=_count, default=500, help="what is lowered is lowered to this (default: 500)"
    )
    parser.set_defaults(run=_connections)


def _register_udp(studies: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        studies,
        "udp-loss",
        "where datagrams are lost when a subscriber never reads, and TCP beside it",
        "  python -m studies udp-loss\n  python -m studies udp-loss --seconds 3 --rate 20000\n",
        5,
        "how long each of its eight experiments publishes",
    )
    parser.add_argument("--size", type=_count, default=1_000, help="bytes of a payload (default: 1000)")
    parser.add_argument("--rate", type=_count, default=5_000, help="messages a second (default: 5000)")
    parser.set_defaults(run=_udp_loss)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if 1 <= seconds <= 600:
        return seconds
    raise argparse.ArgumentTypeError(f"expected a number from 1 to 600, not {text!r}")


def _count(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a number above 0, not {text!r}")


def _tcp_flow_control(args: argparse.Namespace) -> int:
    from studies.tcp_flow_control import Options
    from studies.tcp_report import study

    options = Options(args.seconds, args.size, args.rate, args.speed)
    return _run(args.out, lambda say: study(options, args.out, say))


def _connections(args: argparse.Namespace) -> int:
    from studies.connections import Options
    from studies.connections_report import study

    options = Options(args.seconds, args.clients, args.limit)
    return _run(args.out, lambda say: study(options, args.out, say))


def _udp_loss(args: argparse.Namespace) -> int:
    from studies.udp_loss import Options
    from studies.udp_report import study

    options = Options(args.seconds, args.size, args.rate)
    return _run(args.out, lambda say: study(options, args.out, say))


def _run(folder: Path, study: Callable[[Callable[[str], None]], Report]) -> int:
    """Run a study with its progress, then print its findings."""
    from studies.machine import StudyError

    console = Console(stderr=True)
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with console.status("starting") as status:

            def say(text: str) -> None:
                status.update(text)
                if not console.is_terminal:
                    console.print(text)

            report = study(say)
    except (StudyError, OSError) as error:
        print(f"studies: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    table = Table(title=report.name, show_header=False)
    for what, value in report.findings:
        table.add_row(what, value)
    Console().print(table)
    print(f"report: {report.path}")
    return 0


def _interrupted(_: int, __: FrameType | None) -> None:
    """End as Ctrl-C does, so that processes and namespaces are cleaned up."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())

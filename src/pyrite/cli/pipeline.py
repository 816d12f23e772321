"""`pyrite pipeline`: create, run and show a Spark pipeline over the log."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console

from pyrite.cli.arguments import number_between, positive_int
from pyrite.cli.schemas import add_sample, sampled, show_families, write_schemas

if TYPE_CHECKING:
    from pyrite.pipeline.project import Project

BROKER = "flight://127.0.0.1:8815"

_EXAMPLES = """\
examples:
  pyrite pipeline init plant                    create a project in the folder plant
  pyrite pipeline init plant --infer            the same, with schemas inferred from the log
  cd plant
  pyrite pipeline run                           process what is new since the last run
  pyrite pipeline run --continuous              keep processing until Ctrl-C
  pyrite pipeline show                          print the tables, and plot them to PNG files
  pyrite pipeline backtest --from -1d           the same over a part of the log, publishing nothing
  pyrite pipeline tune                          count the alerts that other thresholds would give
  pyrite sub -t 'alerts/#' -v                   the alerts, as the pipeline publishes them

Needs `pip install 'pyrite[spark]'` and Java 17 or later (installed with it if missing).
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "pipeline",
        help="create, run and show a Spark pipeline: raw messages, decoded, aggregated, with outlier alerts",
        description="Create, run and show a Spark Declarative Pipeline over the log of a broker.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    init = _add(actions, "init", "create a project", "  pyrite pipeline init plant\n")
    init.add_argument("name", metavar="NAME", type=Path, help="the folder to create")
    init.add_argument("--broker", default=BROKER, metavar="URL", type=_broker, help=f"default: {BROKER}")
    init.add_argument(
        "--infer", action="store_true", help="infer schemas.toml from the messages of the broker"
    )
    add_sample(init)
    init.set_defaults(run=_init)

    run = _add(
        actions,
        "run",
        "process new messages",
        "  pyrite pipeline run\n  pyrite pipeline run --continuous --every 5\n"
        "  pyrite pipeline run --full-refresh\n",
    )
    _add_project(run)
    run.add_argument(
        "--broker",
        metavar="URL",
        type=_broker,
        help="use this broker instead of the one in spark-pipeline.yml",
    )
    run.add_argument(
        "--master", default="local[*]", help="the Spark master (default: local[*], all local cores)"
    )
    how = run.add_mutually_exclusive_group()
    how.add_argument(
        "--continuous", action="store_true", help="run again whenever the log has grown, until Ctrl-C"
    )
    how.add_argument(
        "--full-refresh", action="store_true", help="empty all tables, then process the whole log"
    )
    run.add_argument(
        "--every",
        type=number_between(0, 86_400, "seconds from 0 to 86400"),
        default=1.0,
        metavar="N",
        help="seconds between runs (default: 1)",
    )
    run.set_defaults(run=_run)

    show = _add(actions, "show", "print the tables and draw plots", "  pyrite pipeline show --rows 20\n")
    _add_project(show)
    show.add_argument(
        "--rows", type=positive_int, default=10, metavar="N", help="rows per table (default: 10)"
    )
    show.add_argument(
        "--plots", type=Path, metavar="DIR", help="where to write plots (default: plots in the project)"
    )
    show.set_defaults(run=_show)

    backtest = _add(
        actions,
        "backtest",
        "run the transformations over a part of the log, publishing nothing",
        "  pyrite pipeline backtest --from 2026-01-30T00:00:00Z --to 2026-01-31T00:00:00Z\n"
        "  pyrite pipeline backtest --from -1d\n",
    )
    _add_project(backtest)
    backtest.add_argument(
        "--from",
        default="earliest",
        dest="since",
        metavar="T",
        help="the first message: a time, an offset, a time ago such as -1h (default: earliest)",
    )
    backtest.add_argument("--to", dest="until", metavar="T", help="messages before this time (default: now)")
    backtest.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="a new folder for the tables (default: in backtests/)",
    )
    backtest.add_argument("--broker", metavar="URL", type=_broker, help="use this broker")
    backtest.add_argument("--master", default="local[*]", help="the Spark master (default: local[*])")
    backtest.set_defaults(run=_backtest)

    tune = _add(
        actions,
        "tune",
        "score settings of alerts on the decoded history",
        "  pyrite pipeline tune\n  pyrite pipeline tune --set threshold=4,5,6 --set silence=10,20\n"
        "  pyrite pipeline tune --labels faults.jsonl\n",
    )
    _add_project(tune)
    tune.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="NAME=VALUE,...",
        help="values to try for a setting of alerts.toml; may be repeated (default: threshold=4,5,6,8)",
    )
    tune.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help='known faults, one per line: {"device": NAME, "from": TIME, "to": TIME, "field": NAME or null}',
    )
    tune.set_defaults(run=_tune)

    demo = _add(
        actions,
        "demo",
        "run a broker, devices with faults and a pipeline, and show its alerts",
        "  pyrite pipeline demo\n  pyrite pipeline demo --devices 5 --faults 5\n",
    )
    demo.add_argument("--devices", type=positive_int, default=20, metavar="N", help="default: 20")
    demo.add_argument(
        "--rate",
        type=positive_int,
        default=25,
        metavar="N",
        help="messages per second and device (default: 25)",
    )
    demo.add_argument(
        "--seconds",
        type=positive_int,
        default=40,
        metavar="N",
        help="how long the devices publish (default: 40)",
    )
    demo.add_argument("--faults", type=positive_int, default=20, metavar="N", help="default: 20")
    demo.add_argument("--seed", type=int, default=7, metavar="N", help="default: 7")
    demo.set_defaults(run=_demo)


def _add(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, examples: str
) -> argparse.ArgumentParser:
    return actions.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_project(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--project",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="the project folder (default: the current folder or a parent of it)",
    )


def _broker(text: str) -> str:
    if text.startswith(("flight://", "flights://")):
        return text
    raise argparse.ArgumentTypeError(f"expected flight://HOST:PORT or flights://HOST:PORT, not {text!r}")


def _said(work: Callable[[], int]) -> int:
    """Run an action; known errors become one line on stderr and an exit code."""
    try:
        from pyrite.pipeline.errors import PipelineError
    except ModuleNotFoundError as error:
        print(
            f"pyrite pipeline: {error}. Install what it takes: pip install 'pyrite[spark]'", file=sys.stderr
        )
        return 1
    try:
        return work()
    except PipelineError as error:
        print(f"pyrite pipeline: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        print(
            f"pyrite pipeline: {error}. Install what it takes: pip install 'pyrite[spark]'", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        return 130


def _init(args: argparse.Namespace) -> int:
    def work() -> int:
        from pyrite.pipeline.project import make_project

        families = sampled(args) if args.infer else []
        project = make_project(args.name, args.broker)
        if families:
            show_families(families, Console())
            write_schemas(project.folder / "schemas.toml", families)
        print(f"Created {args.name}. Edit schemas.toml and transformations/ to suit your messages, then:")
        print(f"  cd {args.name}\n  pyrite pipeline run")
        print(f"It reads from {project.broker}; start a broker there with `pyrite serve`.")
        return 0

    return _said(work)


def _run(args: argparse.Namespace) -> int:
    return _said(lambda: _run_project(args))


def _run_project(args: argparse.Namespace) -> int:
    from pyrite.pipeline.project import find_project

    return _run_found(args, find_project(args.project))


def _backtest(args: argparse.Namespace) -> int:
    def work() -> int:
        from pyrite.pipeline.backtest import make_backtest, parse_until
        from pyrite.pipeline.project import find_project

        project = find_project(args.project)
        until = parse_until(args.until)
        made = make_backtest(project, args.broker or project.broker, args.since, until, args.output)
        args.continuous = args.full_refresh = False
        code = _run_found(args, made)
        print(f"The tables of the backtest are in {made.tables}; nothing was published.")
        return code

    return _said(work)


def _run_found(args: argparse.Namespace, project: Project) -> int:
    if project.advice is not None:
        print(f"pyrite pipeline: {project.advice}", file=sys.stderr)
    from pyrite.pipeline.errors import PipelineError
    from pyrite.pipeline.progress import ProgressDisplay
    from pyrite.pipeline.run import run_continuously, started
    from pyrite.spark.java import JavaNotFound

    progress = ProgressDisplay(Console(stderr=True), Console())
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        broker = args.broker or project.broker
        with progress, started(project, broker, args.master, progress.note) as runner:
            if not args.continuous:
                progress.done(runner.run(progress.step, args.full_refresh))
                return 0
            stop = Event()
            _stop_after_this_run(stop, progress.note)
            run_continuously(runner, progress.step, progress.done, args.every, stop, progress.note)
            return 0
    except (PipelineError, JavaNotFound) as error:
        print(f"pyrite pipeline: {error}", file=sys.stderr)
        if (project.folder / "spark.log").exists():
            print(f"Spark's own output is in {project.folder / 'spark.log'}", file=sys.stderr)
        return getattr(error, "exit_code", 1)


def _stop_after_this_run(stop: Event, note: Callable[[str], None]) -> None:
    """Stop the loop after the current run at the first Ctrl-C, and at once at the second."""

    def asked(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        note("stopping after this run; press Ctrl-C again to stop now (nothing is lost)")

    signal.signal(signal.SIGINT, asked)
    signal.signal(signal.SIGTERM, asked)


def _interrupted(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def _show(args: argparse.Namespace) -> int:
    def work() -> int:
        from pyrite.pipeline.project import find_project
        from pyrite.pipeline.show import show

        project = find_project(args.project)
        return show(project, args.rows, args.plots or project.folder / "plots", Console())

    return _said(work)


def _tune(args: argparse.Namespace) -> int:
    def work() -> int:
        from pyrite.pipeline.project import find_project
        from pyrite.pipeline.tune import tune

        return tune(find_project(args.project), args.settings, args.labels, Console())

    return _said(work)


def _demo(args: argparse.Namespace) -> int:
    def work() -> int:
        from pyrite.pipeline.demo import DemoOptions, demo

        wanted = DemoOptions(args.devices, args.rate, args.seconds, args.faults, args.seed)
        return 0 if demo(wanted, Console()) else 1

    return _said(work)

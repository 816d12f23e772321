"""`python -m benchmarks`: run the scenarios, show the ratios, write RESULTS.md and results.png."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from . import brokers, compiled, disk, generator, machine, plot, quoting, report, scenarios, terminal
from .brokers import Broker
from .comparison import Comparison
from .generator import HERE, MeasurementError
from .measure import Series, ceiling, run_once
from .scenarios import COMPILED, COMPILED_EPHEMERAL, Scenario

EXAMPLES = """\
examples:
  python -m benchmarks                                     everything: under an hour; writes RESULTS.md
  python -m benchmarks --goals                             rows with goals, and floods: about 20 minutes
  python -m benchmarks --quick                             one run of each: about 10 minutes
  python -m benchmarks --only 'telemetry-qos*' --brokers pyrite
  python -m benchmarks --only flood-fan-out --runs 3 --seconds 5 --brokers "pyrite --ephemeral,mosquitto"
  benchmarks/.build/load --help                            the load generator itself, against any port

A complete run and --goals write RESULTS.md and results.png, and the figures that README.md and docs/ quote
from it; with --quick, --only or --brokers nothing is written. The data of pyrite and nats-sync is in
benchmarks/.build meanwhile, or in $TMPDIR.
scenarios: """ + ", ".join(scenario.id for scenario in scenarios.ALL)


def _chosen_brokers(text: str | None) -> set[str]:
    names = [broker.name for broker in brokers.ALL]
    if text is None:
        return set(names)
    wanted = {name.strip() for name in text.split(",") if name.strip()}
    unknown = wanted - set(names)
    if unknown:
        raise SystemExit(f"no such broker: {', '.join(sorted(unknown))}. There are: {', '.join(names)}")
    return wanted


def _chosen_scenarios(options: argparse.Namespace) -> list[Scenario]:
    chosen = scenarios.matching(options.only) if options.only is not None else list(scenarios.ALL)
    chosen = [scenario for scenario in chosen if scenario.is_goal or not options.goals]
    if not chosen:
        raise SystemExit(
            f"no scenario matches {options.only!r}. There are: {', '.join(s.id for s in scenarios.ALL)}"
        )
    return chosen


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure Pyrite against mosquitto, nats-server and amqtt.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", metavar="PATTERNS", help="these scenarios, such as 'telemetry-*,qos1-single'"
    )
    parser.add_argument("--goals", action="store_true", help="only the scenarios of the goals, and floods")
    parser.add_argument(
        "--brokers", metavar="NAMES", help="these brokers, of " + ",".join(b.name for b in brokers.ALL)
    )
    parser.add_argument(
        "--runs", type=int, default=5, metavar="N", help="runs of each, the median counts (5)"
    )
    parser.add_argument("--seconds", type=float, default=1, metavar="S", help="measured time of a run (1)")
    parser.add_argument("--quick", action="store_true", help="one run of one second of each")
    parser.add_argument(
        "--no-write", action="store_true", help="leave RESULTS.md and results.png as they are"
    )
    options = parser.parse_args(argv)
    if options.quick:
        options.runs, options.seconds = 1, 1.0
    if options.runs < 1 or options.seconds <= 0:
        parser.error("--runs and --seconds must be above 0")
    return options


def _present(wanted: set[str], console: Console) -> tuple[list[Broker], dict[str, str], list[str]]:
    """Find the wanted brokers: those present, their versions, and a line for each that is absent."""
    present, versions, absent = [], {}, []
    for broker in brokers.ALL:
        if broker.name not in wanted:
            continue
        program = broker.find()
        if program is None:
            absent.append(f"{broker.name} is not installed, so left out ({broker.missing})")
            console.print(f"[yellow]{absent[-1]}[/]")
        else:
            present.append(broker)
            versions[broker.name] = broker.version(program)
    return present, versions, absent


def _run_all(comparison: Comparison, present: Sequence[Broker], console: Console) -> None:
    by_id = {scenario.id: scenario for scenario in scenarios.ALL}
    run_ids = dict.fromkeys(scenario.run_id for scenario in comparison.scenarios)
    plan = [(by_id[run_id], [b for b in present if b.name in by_id[run_id].brokers]) for run_id in run_ids]
    ceilings = [scenario for scenario, _ in plan if scenario.id in scenarios.CEILINGS]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        runs = {scenario.id: min(comparison.runs, scenario.runs) for scenario, _ in plan}
        total = len(ceilings) + sum(runs[scenario.id] * len(taking_part) for scenario, taking_part in plan)
        task = progress.add_task("", total=total)
        for scenario in ceilings:
            progress.update(task, description=f"ceiling {scenario.id}")
            figures = comparison.ceilings[scenario.id] = ceiling(
                scenario, comparison.seconds, min(3, comparison.runs)
            )
            console.print(
                f"{terminal.head(scenario.id, '(ceiling)')}{figures['out_per_second']:,.0f}/s out",
                highlight=False,
            )
            progress.advance(task)
        for scenario, taking_part in plan:
            for number in range(runs[scenario.id]):
                # The brokers take turns, so that a slow minute of the machine affects all of them.
                for broker in taking_part:
                    progress.update(task, description=f"{scenario.id} {broker.name}, run {number + 1}")
                    series = comparison.series.setdefault((scenario.id, broker.name), Series())
                    try:
                        series.runs.append(run_once(scenario, broker, comparison.seconds))
                    except MeasurementError as error:
                        series.failures.append(str(error))
                    progress.advance(task)
            for broker in taking_part:
                console.print(
                    terminal.summary_line(comparison, scenario, broker.name), highlight=False, soft_wrap=True
                )


def _measure_routing(console: Console) -> list[tuple[str, str]]:
    try:
        from . import routing
    except ImportError as error:
        console.print(f"[yellow]routing is left out: {error}[/]")
        return []
    with console.status("routing among 1,000,000 filters"):
        return routing.measure()


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks as the command line asks; return the exit status."""
    options = _arguments(argv)
    console = Console(width=None if sys.stdout.isatty() else 140)
    chosen = _chosen_scenarios(options)
    names = _chosen_brokers(options.brokers)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    writes = options.only is None and options.brokers is None and not options.quick and not options.no_write
    present, versions, absent = _present(names, console)
    comparison = Comparison(chosen, versions, options.runs, options.seconds, machine.describe(), absent)
    try:
        generator.compile_generator()
        disk.folder()  # fails at once where that is no real disk
        if any(broker.name in (COMPILED, COMPILED_EPHEMERAL) for broker in present):
            with console.status("building the compiled wheel"):
                compiled.packages()
        _run_all(comparison, present, console)
        if writes and not options.goals:
            comparison.routing = _measure_routing(console)
    except MeasurementError as error:
        console.print(f"[red]{error}[/]")
        return 1
    except KeyboardInterrupt:
        console.print("stopped; no broker is left running, nothing is written")
        return 130
    for table in terminal.tables(comparison):
        console.print(table)
    if disturbance := comparison.disturbance():
        console.print(f"[yellow]{disturbance}[/]")
    for sentence in comparison.faults():
        console.print(f"[red]{sentence}[/]")
    if writes:
        report.write_markdown(comparison, HERE / "RESULTS.md")
        plot.draw(comparison, HERE / "results.png")
        quotes = [str(page.relative_to(HERE.parent)) for page in quoting.fill(HERE.parent)]
        console.print("written:", ", ".join(["benchmarks/RESULTS.md", "benchmarks/results.png", *quotes]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

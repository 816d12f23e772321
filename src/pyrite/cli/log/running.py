"""Shared by the commands of `pyrite log`: errors, exit codes, streams and progress bars."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pyrite.cli.errors import CommandError, discard_stdout, with_name
from pyrite.storage.folder import FolderError, check_format
from pyrite.storage.segment import Damage
from pyrite.storage.stream import streams_in


def run(program: str, command: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command; every failure becomes one line on stderr and an exit code."""
    try:
        exit_code = command(args)
        sys.stdout.flush()
        return exit_code
    except CommandError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code
    except FolderError as error:
        print(f"{program}: {error}", file=sys.stderr)
    except BrokenPipeError:
        discard_stdout()
        return 0
    except OSError as error:
        print(f"{program}: {with_name(error)}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 1


def folders(args: argparse.Namespace) -> list[Path]:
    """Return the folder of the named stream, or of all streams."""
    data: Path = args.data
    if not data.is_dir():
        raise CommandError(f"no data folder {data}: name the broker's with --data")
    if not (data / "streams").is_dir():
        raise CommandError(f"{data} is not a Pyrite data folder: it has no folder 'streams'")
    check_format(data)
    found = streams_in(data)
    if args.stream is None:
        return found
    for folder in found:
        if folder.name == args.stream:
            return [folder]
    names = ", ".join(folder.name for folder in found)
    raise CommandError(
        f"no stream {args.stream!r} in {data}; "
        + (f"existing streams: {names}" if names else "it contains none")
    )


def report(damage: Damage) -> None:
    """Report damage on stderr."""
    print(f"damaged: {damage}", file=sys.stderr, flush=True)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr if that is a terminal; yields a function of (done, total)."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)

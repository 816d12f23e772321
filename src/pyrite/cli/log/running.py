"""What the commands of `pyrite log` have in common: how they end, and how they reach the streams."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pyrite.cli.errors import with_name
from pyrite.storage.folder import FolderError, check_format
from pyrite.storage.segment import Damage
from pyrite.storage.stream import streams_in


class LogError(Exception):
    """The command cannot be carried out; the message says why."""


class UsageError(LogError):
    """The options do not go together."""


def run(program: str, command: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command so that whatever happens ends in a line and an exit code."""
    try:
        exit_code = command(args)
        sys.stdout.flush()
        return exit_code
    except UsageError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except (LogError, FolderError) as error:
        print(f"{program}: {error}", file=sys.stderr)
    except BrokenPipeError:
        give_output_up()
        return 0
    except OSError as error:
        print(f"{program}: {with_name(error)}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 1


def give_output_up() -> None:
    """Send what is still to be written nowhere, as its reader is gone; else Python complains at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def folders(args: argparse.Namespace) -> list[Path]:
    """Return the folder of the stream that is named, or of all."""
    data: Path = args.data
    if not data.is_dir():
        raise LogError(f"there is no folder {data}; --data names the one that the broker uses")
    if not (data / "streams").is_dir():
        raise LogError(f"{data} is no data folder of Pyrite's: it has no folder streams")
    check_format(data)
    found = streams_in(data)
    if args.stream is None:
        return found
    for folder in found:
        if folder.name == args.stream:
            return [folder]
    names = ", ".join(folder.name for folder in found)
    raise LogError(
        f"there is no stream {args.stream!r} in {data}; "
        + (f"there are: {names}" if names else "it has none")
    )


def report(damage: Damage) -> None:
    """Tell of a damage, on standard error."""
    print(f"damaged: {damage}", file=sys.stderr, flush=True)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error, if that is a terminal; yields what is told of (done, of how many)."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)

"""Shared by the classic programs: arguments, connecting, running a broker, and errors without a traceback."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Protocol

from pyrite.broker.catalog import TopicOptions
from pyrite.cli.errors import reason_of, with_name
from pyrite.cli.serve import start
from pyrite.client.line import LineClient, LineError
from pyrite.protocols.line.options import LineOptions
from pyrite.server.config import Config

INTERRUPTED = 130
"""Exit code after Ctrl-C, by shell convention."""


class Main(Protocol):
    """The entry point of a program."""

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Run with these arguments, or those of the process; returns the exit code."""


def name() -> str:
    """Return the program's name for usage and errors."""
    return Path(sys.argv[0]).name


def fail(problem: object) -> int:
    """Print one sentence on stderr; returns the exit code of a failure."""
    print(f"{name()}: {problem}", file=sys.stderr)
    return 1


def stopped(code: int = 0) -> int:
    """Report that Ctrl-C or SIGTERM ended this program; returns its exit code."""
    print("stopped", file=sys.stderr, flush=True)
    return code


def program(main: Main) -> Main:
    """Decorate a main function: every failure becomes one sentence and an exit code, never a traceback."""

    @wraps(main)
    def run(arguments: Sequence[str] | None = None) -> int:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # the terminal's encoding may lack characters of a message
                stream.reconfigure(errors="backslashreplace")
        try:
            code = main(arguments)
            sys.stdout.flush()
            return code
        except KeyboardInterrupt:
            return stopped(INTERRUPTED)
        except BrokenPipeError:  # the reader of a pipe is gone; Python must not flush into it at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 1
        except UnicodeEncodeError:
            return fail("the topic or the message is not valid UTF-8")
        except OSError as error:
            return fail(with_name(error))
        except LineError as error:
            return fail(error)

    return run


def port(text: str) -> int:
    """Parse a port number."""
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, not {text!r}")
    return int(text)


def positive(text: str) -> int:
    """Parse a number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, not {text!r}")
    return int(text)


def connect(host: str, port: int) -> LineClient:
    """Connect to a server; raises ConnectionError with one sentence that names it."""
    try:
        return LineClient(host, port)
    except OSError as error:
        raise ConnectionError(f"cannot reach the server at {host}:{port}: {reason_of(error)}") from None


def serve(
    listeners: Sequence[str],
    data: str | None = None,
    topics: TopicOptions | None = None,
    say: Callable[[str], None] | None = None,
    line: LineOptions | None = None,
) -> int:
    """Run a broker until Ctrl-C; returns its exit code.

    Without a data folder, everything is kept in memory. Prints the listeners' addresses if a port is 0, and
    nothing else, unless `say` is given, which then receives every status line. The classic systems have no
    users: every client that can connect is accepted.
    """
    config = Config(listen=list(listeners), ephemeral=data is None, log_level="warning")
    config.data = data or config.data
    config.topics = topics or config.topics
    config.line = line or config.line
    free_port = any(listener.endswith(":0") for listener in listeners)

    def say_where(text: str) -> None:
        if free_port and text.startswith("listening on "):
            print(text, flush=True)

    code = start(config, say or say_where, program=name())
    return code or stopped()

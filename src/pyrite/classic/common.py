"""What the classic programs share: arguments, connecting, starting a broker, ending without a traceback."""

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
"""Exit code after Ctrl-C, as a shell reports it."""


class Main(Protocol):
    """The entry point of a program."""

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Run with these arguments, or with those of the process, and return the exit code."""


def name() -> str:
    """Return the words that started this program, for its usage and its errors."""
    return Path(sys.argv[0]).name


def fail(problem: object) -> int:
    """Print one sentence on standard error, and return the exit code of a failure."""
    print(f"{name()}: {problem}", file=sys.stderr)
    return 1


def stopped(code: int = 0) -> int:
    """Print that Ctrl-C or SIGTERM ended this program, and return its exit code."""
    print("stopped", file=sys.stderr, flush=True)
    return code


def program(main: Main) -> Main:
    """Have a program end with one sentence and an exit code, never with a traceback."""

    @wraps(main)
    def run(arguments: Sequence[str] | None = None) -> int:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a terminal may not have every letter of a message
                stream.reconfigure(errors="backslashreplace")
        try:
            code = main(arguments)
            sys.stdout.flush()
            return code
        except KeyboardInterrupt:
            return stopped(INTERRUPTED)
        except BrokenPipeError:  # the reader of a pipe is gone; Python must not flush into it at the end
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
    """Read the number of a port."""
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, not {text!r}")
    return int(text)


def positive(text: str) -> int:
    """Read a number from 1 on."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, not {text!r}")
    return int(text)


def connect(host: str, port: int) -> LineClient:
    """Connect to a server; raise ConnectionError with a sentence that names it if that fails."""
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
    """Run a broker on some listeners until Ctrl-C, and return its exit code.

    Without a data folder it keeps everything in memory. It prints where it listens if a port is 0, and
    nothing else; if there is a `say`, that gets every report of the broker instead. The classic systems have
    no users: everyone who can reach a listener is let in.
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

"""Errors of the command line: one line for the user, an exit code for scripts."""

from __future__ import annotations

import argparse
import errno
import os
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from pyrite.errors import PyriteError
from pyrite.process.terminal import printable
from pyrite.protocols.mqtt import reasons
from pyrite.protocols.mqtt.reasons import Reason

_RETURN_CODES = {
    1: Reason.UNSUPPORTED_PROTOCOL_VERSION,
    2: Reason.CLIENT_IDENTIFIER_NOT_VALID,
    3: Reason.SERVER_UNAVAILABLE,
    4: Reason.BAD_USER_NAME_OR_PASSWORD,
    5: Reason.NOT_AUTHORIZED,
}
"""The reason codes that MQTT 3 return codes correspond to."""


_ADVICE = {
    errno.ENOSPC: "; free some space and try again: nothing is lost",
    errno.EDQUOT: "; free some space and try again: nothing is lost",
    errno.EROFS: "; choose a folder that is writable",
}


class CommandError(PyriteError):
    """A failed command: its message and its exit code."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class UsageError(CommandError):
    """Invalid options; exit code 2, as argparse uses."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=2)


def run_command(
    program: str,
    args: argparse.Namespace,
    command: Callable[[argparse.Namespace], Coroutine[Any, Any, int]],
) -> int:
    """Run a command; every failure becomes one line on stderr and an exit code, never a traceback."""
    import asyncio  # imported here so that `pyrite log` does not load it

    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(command(args))
    except CommandError as error:
        message, exit_code = str(error), error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # show one line, whatever went wrong
        message, exit_code = f"unexpected {type(error).__name__}: {error}", 1
    if not args.quiet:
        print(f"{program}: {printable(message)}", file=sys.stderr)
    return exit_code


def describe(reason: int, said: str = "") -> str:
    """Return the name of a reason code, with the broker's reason string if there is one."""
    try:
        words = reasons.describe(_RETURN_CODES.get(reason, reason))
    except ValueError:
        words = f"reason code {reason}"
    words = words[0].upper() + words[1:]
    return f"{words} ({said})" if said else words


def reason_of(error: OSError) -> str:
    """Return the cause without the error number and quotes of str(error)."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    number = errno.ECONNRESET if isinstance(error, ConnectionResetError) else error.errno
    if number and not isinstance(error, socket.gaierror):
        return os.strerror(number)
    return error.strerror or str(error) or type(error).__name__


def with_name(error: OSError) -> str:
    """Return the cause, with the file name if known and advice if there is any."""
    where = f"{error.filename}: " if error.filename else ""
    advice = _ADVICE.get(error.errno or 0, "")
    return f"{where}{error.strerror or error}{advice}"


def discard_stdout() -> None:
    """Redirect stdout to /dev/null: its reader is gone, and Python would report the failed flush at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

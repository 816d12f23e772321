"""What a command says when it fails: one line for the person at the keyboard, an exit code for scripts."""

from __future__ import annotations

import argparse
import errno
import os
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine
from typing import Any

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
"""What the return codes of MQTT 3 mean."""


_ADVICE = {
    errno.ENOSPC: "; make room there, and try again: nothing is lost",
    errno.EDQUOT: "; make room there, and try again: nothing is lost",
    errno.EROFS: "; name a folder that can be written to",
}


class CommandError(Exception):
    """What went wrong: a sentence for the person at the keyboard, and an exit code for scripts."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class UsageError(CommandError):
    """The options do not go together; 2 is the exit code argparse uses as well."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=2)


def run_command(
    program: str,
    args: argparse.Namespace,
    command: Callable[[argparse.Namespace], Coroutine[Any, Any, int]],
) -> int:
    """Run a command so that whatever happens ends in one line and an exit code, never in a traceback."""
    import asyncio  # which `pyrite log` need not load

    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(command(args))
    except CommandError as error:
        message, exit_code = str(error), error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the user gets a line whatever went wrong
        message, exit_code = f"unexpected {type(error).__name__}: {error}", 1
    if not args.quiet:
        print(f"{program}: {printable(message)}", file=sys.stderr)
    return exit_code


def describe(reason: int, said: str = "") -> str:
    """Return a reason code's name, and what the broker said besides."""
    try:
        words = reasons.describe(_RETURN_CODES.get(reason, reason))
    except ValueError:
        words = f"reason code {reason}"
    words = words[0].upper() + words[1:]
    return f"{words} ({said})" if said else words


def reason_of(error: OSError) -> str:
    """Say why, without the number and the punctuation that str(error) adds."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    number = errno.ECONNRESET if isinstance(error, ConnectionResetError) else error.errno
    if number and not isinstance(error, socket.gaierror):
        return os.strerror(number)
    return error.strerror or str(error) or type(error).__name__


def with_name(error: OSError) -> str:
    """Say what went wrong with which file, if it is one."""
    where = f"{error.filename}: " if error.filename else ""
    advice = _ADVICE.get(error.errno or 0, "")
    return f"{where}{error.strerror or error}{advice}"

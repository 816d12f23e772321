"""Runs the `pyrite` command many times, each time in a process forked after all imports.

A hundred command lines are tested; starting an interpreter for each would take long. Every input line is a
call as JSON, with arguments and folder; every output line has its exit code and output.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NoReturn

from pyrite.cli.main import main

SECONDS = 20
"""A call that takes longer is killed."""


def run(arguments: list[str], folder: str) -> dict[str, Any]:
    """Run one command line to its end."""
    with tempfile.TemporaryDirectory() as scratch:
        streams = [Path(scratch, name) for name in ("stdout", "stderr")]
        pid = os.fork()
        if pid == 0:
            _be_the_command(arguments, folder, streams)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        output, errors = (path.read_text() for path in streams)
        return {"code": code, "stdout": output, "stderr": errors}


def _be_the_command(arguments: list[str], folder: str, streams: list[Path]) -> NoReturn:
    """Do what `python -m pyrite` would do in that folder."""
    signal.alarm(SECONDS)
    os.setsid()  # no terminal, so no question to a user
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    sys.path.insert(0, folder)
    code: object = 1
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    for line in sys.stdin:
        call = json.loads(line)
        print(json.dumps(run(call["arguments"], call["folder"])), flush=True)

"""The load generator, load.c: compiled when needed, run for one measurement, its JSON line read."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE / ".build"
SOURCE = HERE / "load.c"
TIME_LIMIT = 120.0  # seconds for one run, far above what any takes; a run that hangs is a failed run

Figures = dict[str, float]


class MeasurementError(Exception):
    """A run that gave no figures: the message says why."""


def compile_generator() -> Path:
    """Compile load.c if the binary is missing or older than it; return the binary's path."""
    binary = BUILD / "load"
    if binary.exists() and binary.stat().st_mtime >= SOURCE.stat().st_mtime:
        return binary
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise MeasurementError("no C compiler found (cc, gcc or clang) to build benchmarks/load.c")
    BUILD.mkdir(exist_ok=True)
    command = [compiler, "-O2", "-pthread", "-Wall", "-Wextra", "-o", str(binary), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise MeasurementError(f"load.c does not compile:\n{done.stderr}")
    return binary


def _figures(line: str, errors: str) -> Figures:
    try:
        figures = json.loads(line)
    except json.JSONDecodeError:
        raise MeasurementError(errors.strip() or "the load generator gave no result") from None
    return {name: float(value) for name, value in figures.items() if not isinstance(value, str)}


def run(arguments: Sequence[str]) -> Figures:
    """Run the generator to its end and return every number it reports."""
    with _started(arguments) as process:
        try:
            output, errors = process.communicate(timeout=TIME_LIMIT)
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"the load generator did not end within {TIME_LIMIT:.0f} s") from None
        return _figures(output, errors)


@contextmanager
def holding_connections(arguments: Sequence[str]) -> Iterator[Figures]:
    """Run `load connect`: yields its figures while all connections are held, then closes them."""
    with _started(["connect", *arguments]) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()  # load.c itself gives up on connecting after 60 s
        yield _figures(line, "" if line else process.stderr.read())
        process.stdin.close()
        process.wait(TIME_LIMIT)


@contextmanager
def _started(arguments: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [str(compile_generator()), *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()

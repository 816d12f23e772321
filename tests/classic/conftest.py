"""Programs, started as a person would."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.classic.programs import CLASSIC, Program, Start


@pytest.fixture
def start() -> Iterator[Start]:
    """Start programs that end with the test."""
    started: list[Program] = []

    def make(*arguments: str, python: str = sys.executable, merged: bool = False) -> Program:
        program = str(CLASSIC / arguments[0])
        started.append(Program(program, *arguments[1:], python=python, merged=merged))
        return started[-1]

    yield make
    for program in started:
        if program.process.poll() is None:
            program.process.kill()
            program.end()

"""Programs, started as a user would."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.classic.programs import CHECKOUT, CLASSIC, Program, Start


@pytest.fixture
def start() -> Iterator[Start]:
    """Start programs that end with the test; the first argument is a path below classic/, or an absolute
    one.
    """
    started: list[Program] = []

    def make(path: str, *arguments: str | bytes, **how: Any) -> Program:
        started.append(Program(str(CLASSIC / path), *arguments, **how))
        return started[-1]

    yield make
    for program in started:
        if not program.ended:
            program.process.kill()
            program.end()


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the checkout, with the packages of `make run`, so that a test may change files."""
    copy = tmp_path_factory.mktemp("checkout")
    shutil.copytree(
        CHECKOUT / "src/pyrite", copy / "src/pyrite", ignore=shutil.ignore_patterns("__pycache__")
    )
    (copy / "classic").symlink_to("src/pyrite/classic")
    (copy / ".venv").symlink_to(CHECKOUT / ".venv")
    (copy / "Makefile").touch()
    return copy

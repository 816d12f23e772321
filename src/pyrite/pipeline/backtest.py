"""Runs a project's transformations over a part of the log, into tables of its own, publishing nothing."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

from pyrite.pipeline.alert_settings import ALERTS_FILE
from pyrite.pipeline.connection import FROM, PUBLISH, UNTIL
from pyrite.pipeline.errors import ProjectError
from pyrite.pipeline.project import Project, find_project, make_project

FOLDER = "backtests"
_COPIED = (ALERTS_FILE, "schemas.toml")


def make_backtest(project: Project, broker: str, since: str, until: datetime, folder: Path | None) -> Project:
    """Create a project for a backtest: the same transformations, and a part of the log."""
    if folder is None:
        name = re.sub(r"[^A-Za-z0-9]", "", f"{since}_to_{until:%Y%m%dT%H%M%S}")
        folder = project.folder / FOLDER / f"backtest-{name}"
        folder.parent.mkdir(exist_ok=True)
    made = make_project(folder, broker)
    shutil.rmtree(made.folder / "transformations")
    shutil.copytree(project.folder / "transformations", made.folder / "transformations")
    for name in _COPIED:
        if (project.folder / name).exists():
            shutil.copy(project.folder / name, made.folder / name)
    lines = {FROM: since, UNTIL: until.isoformat(), PUBLISH: "false"}
    with made.specification.open("a") as file:  # the configuration is its last section
        file.writelines(f'  {key}: "{value}"\n' for key, value in lines.items())
    return find_project(made.folder)


def parse_until(text: str | None) -> datetime:
    """Parse the end of a backtest; without one it is now. Raises ProjectError."""
    if text is None:
        return datetime.now(UTC)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ProjectError(f"--to {text}: expected a time, such as 2026-01-31T12:00:00Z") from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)

"""The project folder of a pipeline: creation from templates, and lookup."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import yaml

from pyrite.pipeline.errors import ProjectError

SPECIFICATIONS = ("spark-pipeline.yml", "spark-pipeline.yaml")
BROKER = "flight://127.0.0.1:8815"
SETTINGS = "spark.conf"
WAREHOUSE = "spark.sql.warehouse.dir"
_TEMPLATES = Path(__file__).parent / "template"
_WORDS = re.compile(r"\b(NAME|FOLDER|PATH|STATE|BROKER|TEMPLATES)\b")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_UNFIT = re.compile(r'["\\;\x00-\x1f]')
"""Characters that would end a path in spark.conf or spark-pipeline.yml, or change its meaning."""
_PLAIN = re.compile(r"[\w/.,~+@=:-]+")
"""A path that is the same as a URI."""


@dataclass(frozen=True)
class Project:
    """A pipeline's folder and configuration."""

    folder: Path
    specification: Path
    configuration: dict[str, str]
    """From spark-pipeline.yml: Spark session settings, and ours, which start with `pyrite.`."""
    settings: dict[str, str]
    """From spark.conf: settings that Spark is started with."""

    @property
    def broker(self) -> str:
        """The broker's address."""
        return self.configuration.get("pyrite.broker", BROKER)

    @property
    def advice(self) -> str | None:
        """What to do if the project was created from other templates, or None."""
        if self.configuration.get("pyrite.templates") == _templates():
            return None
        return (
            f"{self.folder} was created by another version of Pyrite, and runs unchanged. To see what "
            "is new, create another project (`pyrite pipeline init NAME`) and compare; to silence "
            f'this message, set pyrite.templates: "{_templates()}" in {self.specification.name}'
        )

    @property
    def tables(self) -> Path:
        """The folder of the tables; raises ProjectError if it is not on this machine."""
        place = self.settings.get(WAREHOUSE, "")
        if urlsplit(place).scheme not in ("", "file") or not place:
            raise ProjectError(
                f"the tables of {self.folder} are not in a local folder ({WAREHOUSE} in {SETTINGS}); "
                "query them with Spark"
            )
        return self.folder / place.removeprefix("file:")


def make_project(folder: Path, broker: str = BROKER) -> Project:
    """Create a project; raises ProjectError if the folder exists."""
    if not _NAME.fullmatch(folder.name):
        raise ProjectError(f"invalid pipeline name {folder.name!r}: use letters, digits, - and _")
    if folder.exists():
        raise ProjectError(f"{folder} already exists: choose another name, or remove it")
    folder = folder.absolute()
    unfit = _UNFIT.search(str(folder))
    if unfit:
        raise ProjectError(f"{folder}: Spark does not accept paths with {unfit[0]!r}; choose another folder")
    # Absolute, as Spark may be started anywhere; and unescaped, as Spark does not decode %20.
    values = {
        "NAME": folder.name,
        "FOLDER": f"file://{folder}",
        "PATH": str(folder),
        "STATE": f"file://{_state_folder(folder)}",
        "BROKER": broker,
        "TEMPLATES": _templates(),
    }
    try:
        shutil.copytree(_TEMPLATES, folder, ignore=shutil.ignore_patterns("__pycache__"))
        for name in (SPECIFICATIONS[0], SETTINGS):
            text = (folder / name).read_text()
            (folder / name).write_text(re.sub(_WORDS, lambda found: values[found[0]], text))
    except OSError as error:
        raise ProjectError(f"cannot write {folder}: {error.strerror}") from None
    return find_project(folder)


@cache
def _templates() -> str:
    """Return an identifier of the templates' content."""
    digest = sha256()
    for path in sorted(_TEMPLATES.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            data = path.read_bytes()
            digest.update(f"{path.relative_to(_TEMPLATES).as_posix()} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:12]


def _state_folder(folder: Path) -> Path:
    """Return the folder for Spark's checkpoints: in the project, if its path allows that.

    Spark escapes a checkpoint's path (`a%20b`), writes to the folder with that very name, and looks for the
    checkpoint in the other (`a b`). A full refresh would empty the tables and then find nothing new.
    """
    homes = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    elsewhere = homes / "pyrite" / f"{folder.name}-{uuid4().hex[:12]}"
    for place in (folder / "state", elsewhere):
        if _PLAIN.fullmatch(str(place)):
            return place
    raise ProjectError(
        f"Spark cannot keep checkpoints in a path with a space or a character such as %, and {folder} "
        f"and {homes} both contain one; choose another folder, or set XDG_STATE_HOME"
    )


def find_project(folder: Path) -> Project:
    """Return the project that a folder belongs to; raises ProjectError if there is none."""
    folder = folder.absolute()
    for each in (folder, *folder.parents):
        for name in SPECIFICATIONS:
            if (each / name).is_file():
                return Project(each, each / name, _configuration(each / name), _settings(each / SETTINGS))
    raise ProjectError(
        f"no pipeline in {folder}: no {SPECIFICATIONS[0]} there or in a parent folder. Create one "
        "with `pyrite pipeline init NAME`, and change to its folder or pass it as --project"
    )


def _configuration(path: Path) -> dict[str, str]:
    try:
        found: Any = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ProjectError(f"{path}: {error}") from None
    settings = found.get("configuration") if isinstance(found, dict) else None
    if not isinstance(settings, dict):
        raise ProjectError(f"{path}: no `configuration:` section, which names the broker")
    return {str(key): str(value) for key, value in settings.items()}


def _settings(path: Path) -> dict[str, str]:
    """Read lines of name and value; the file may be missing."""
    if not path.exists():
        return {}
    lines = [line.split(maxsplit=1) for line in path.read_text().splitlines() if not line.startswith("#")]
    return {words[0]: words[1].strip() for words in lines if len(words) == 2}

"""The folder of a pipeline: written once from templates, and found again."""

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

SPECIFICATIONS = ("spark-pipeline.yml", "spark-pipeline.yaml")
BROKER = "flight://127.0.0.1:8815"
SETTINGS = "spark.conf"
WAREHOUSE = "spark.sql.warehouse.dir"
_TEMPLATES = Path(__file__).parent / "template"
_WORDS = re.compile(r"\b(NAME|FOLDER|PATH|STATE|BROKER|TEMPLATES)\b")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_UNFIT = re.compile(r'["\\;\x00-\x1f]')
"""What ends a path in spark.conf or in spark-pipeline.yml, or means something else there."""
_PLAIN = re.compile(r"[\w/.,~+@=:-]+")
"""A path in which nothing is escaped when it is made a URI."""


class ProjectError(Exception):
    """A project that cannot be made, found or read; the text says why, and what to do."""


@dataclass(frozen=True)
class Project:
    """A pipeline's folder, and what its specification says."""

    folder: Path
    specification: Path
    configuration: dict[str, str]
    """What it says itself: settings of Spark's that may change, and ours, which begin with `pyrite.`."""
    settings: dict[str, str]
    """What spark.conf says: settings that Spark is started with."""

    @property
    def broker(self) -> str:
        """Where its messages come from."""
        return self.configuration.get("pyrite.broker", BROKER)

    @property
    def advice(self) -> str | None:
        """What to do if the templates are not those any more of which it was made."""
        if self.configuration.get("pyrite.templates") == _templates():
            return None
        return (
            f"{self.folder} was not made of the templates that this version of Pyrite has, and runs as it "
            "is. To see what is new, write them elsewhere (`pyrite pipeline init NAME`) and compare; to have "
            f'this not said again, set pyrite.templates: "{_templates()}" in {self.specification.name}'
        )

    @property
    def tables(self) -> Path:
        """The folder of its tables; ProjectError if that is not on this machine."""
        place = self.settings.get(WAREHOUSE, "")
        if urlsplit(place).scheme not in ("", "file") or not place:
            raise ProjectError(
                f"the tables of {self.folder} are not in a folder of this machine "
                f"({WAREHOUSE} in {SETTINGS}); look at them with Spark"
            )
        return self.folder / place.removeprefix("file:")


def make_project(folder: Path, broker: str = BROKER) -> Project:
    """Write a new project; ProjectError if there is something already."""
    if not _NAME.fullmatch(folder.name):
        raise ProjectError(f"{folder.name!r} cannot be a pipeline's name: take letters, digits, - and _")
    if folder.exists():
        raise ProjectError(f"{folder} is there already; take another name, or remove it")
    folder = folder.absolute()
    unfit = _UNFIT.search(str(folder))
    if unfit:
        raise ProjectError(f"{folder}: Spark cannot be told of a path with {unfit[0]!r}; take another")
    # Spark wants to know where things are wherever it is started; and to it, %20 in a path is no space.
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
        raise ProjectError(f"{folder} cannot be written: {error.strerror}") from None
    return find_project(folder)


@cache
def _templates() -> str:
    """Return what tells these templates from others."""
    digest = sha256()
    for path in sorted(_TEMPLATES.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            data = path.read_bytes()
            digest.update(f"{path.relative_to(_TEMPLATES).as_posix()} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:12]


def _state_folder(folder: Path) -> Path:
    """Return where Spark is to note how far a pipeline has come: in its folder, if that can be.

    Spark escapes the path of a checkpoint (`a%20b`), writes to the one that has this very name, and looks for
    what is there at the other (`a b`). A full refresh would empty the tables, and then find nothing new.
    """
    homes = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    elsewhere = homes / "pyrite" / f"{folder.name}-{uuid4().hex[:12]}"
    for place in (folder / "state", elsewhere):
        if _PLAIN.fullmatch(str(place)):
            return place
    raise ProjectError(
        f"Spark keeps no state in a path with a space or a sign like %, and neither {folder} nor {homes} "
        "is without; take another folder, or let XDG_STATE_HOME name one"
    )


def find_project(folder: Path) -> Project:
    """Return the project that a folder is in; ProjectError if it is in none."""
    folder = folder.absolute()
    for each in (folder, *folder.parents):
        for name in SPECIFICATIONS:
            if (each / name).is_file():
                return Project(each, each / name, _configuration(each / name), _settings(each / SETTINGS))
    raise ProjectError(
        f"there is no pipeline in {folder}: no {SPECIFICATIONS[0]}, there or above. "
        "Make one with `pyrite pipeline init NAME`, and go to its folder, or name it with --project"
    )


def _configuration(path: Path) -> dict[str, str]:
    try:
        found: Any = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ProjectError(f"{path}: {error}") from None
    settings = found.get("configuration") if isinstance(found, dict) else None
    if not isinstance(settings, dict):
        raise ProjectError(f"{path}: there is no `configuration:` in it, which names the broker")
    return {str(key): str(value) for key, value in settings.items()}


def _settings(path: Path) -> dict[str, str]:
    """Read lines of a name, spaces, and a value; there may be none."""
    if not path.exists():
        return {}
    lines = [line.split(maxsplit=1) for line in path.read_text().splitlines() if not line.startswith("#")]
    return {words[0]: words[1].strip() for words in lines if len(words) == 2}

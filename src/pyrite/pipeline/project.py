"""The folder of a pipeline: written once from templates, and found again."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

SPECIFICATIONS = ("spark-pipeline.yml", "spark-pipeline.yaml")
BROKER = "flight://127.0.0.1:8815"
SETTINGS = "spark.conf"
WAREHOUSE = "spark.sql.warehouse.dir"
_TEMPLATES = Path(__file__).parent / "template"
_WORDS = re.compile(r"\b(NAME|FOLDER|PATH|BROKER)\b")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


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
    def tables(self) -> Path:
        """The folder of its tables; ProjectError if that is not on this machine."""
        place = urlsplit(self.settings.get(WAREHOUSE, ""))
        if place.scheme not in ("", "file") or not place.path:
            raise ProjectError(
                f"the tables of {self.folder} are not in a folder of this machine "
                f"({WAREHOUSE} in {SETTINGS}); look at them with Spark"
            )
        return Path(unquote(place.path)) if place.scheme else self.folder / place.path


def make_project(folder: Path, broker: str = BROKER) -> Project:
    """Write a new project; ProjectError if there is something already."""
    if not _NAME.fullmatch(folder.name):
        raise ProjectError(f"{folder.name!r} cannot be a pipeline's name: take letters, digits, - and _")
    if folder.exists():
        raise ProjectError(f"{folder} is there already; take another name, or remove it")
    folder = folder.absolute()
    try:
        shutil.copytree(_TEMPLATES, folder, ignore=shutil.ignore_patterns("__pycache__"))
        # Spark wants to know where things are wherever it is started.
        values = {"NAME": folder.name, "FOLDER": folder.as_uri(), "PATH": str(folder), "BROKER": broker}
        for name in (SPECIFICATIONS[0], SETTINGS):
            text = (folder / name).read_text()
            (folder / name).write_text(re.sub(_WORDS, lambda found: values[found[0]], text))
    except OSError as error:
        raise ProjectError(f"{folder} cannot be written: {error.strerror}") from None
    return find_project(folder)


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

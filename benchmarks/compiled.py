"""Builds the wheel with compiled modules from this checkout, for the brokers named "pyrite compiled"."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

from .generator import BUILD, HERE, MeasurementError

ROOT = HERE.parent
TIME_LIMIT = 1200


def _digest() -> str:
    """Return a digest of all that the wheel is made of."""
    digest = hashlib.sha256()
    sources = sorted((ROOT / "src/pyrite").rglob("*.py"))
    for file in (*sources, ROOT / "pyproject.toml", ROOT / "hatch_build.py"):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


@cache
def packages() -> Path:
    """Return the folder with the compiled package, which is built if the sources have changed."""
    folder = BUILD / f"compiled-{_digest()}"
    if (folder / "built").exists():
        return folder
    for older in BUILD.glob("compiled-*"):
        shutil.rmtree(older)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(
        build,
        cwd=ROOT,
        env={**os.environ, "HATCH_BUILD_HOOK_ENABLE_CUSTOM": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIME_LIMIT,
    )
    if done.returncode:
        raise MeasurementError(f"the compiled wheel cannot be built: {done.stdout[-2000:]}")
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    (folder / "built").touch()
    return folder

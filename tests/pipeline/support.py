"""Helpers of the pipeline tests."""

from __future__ import annotations

from pathlib import Path

_JAVA = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "21"' >&2; exit 0; fi
echo 'WARNING: this is no Java' >&2
echo 'no memory to speak of' >&2
exit 1
"""


def broken_java(folder: Path) -> Path:
    """Create a Java that fails to start; returns its JAVA_HOME."""
    java = folder / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(_JAVA)
    java.chmod(0o755)
    return java.parents[1]

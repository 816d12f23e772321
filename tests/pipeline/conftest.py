"""Fixtures of the pipeline tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrite.pipeline.project import Project, make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A new project."""
    return make_project(tmp_path / "plant")

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.durable import quick_folder
from tests.support.log_fixtures import folder, internal_errors, no_internal_errors

__all__ = ["folder", "internal_errors", "no_internal_errors"]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory: some tests sync thousands of times."""
    with quick_folder() as path:
        yield path

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.core import Core, no_internal_errors


@pytest.fixture
def core() -> Iterator[Core]:
    """A broker; the test fails if it logs an internal error."""
    with no_internal_errors():
        yield Core()

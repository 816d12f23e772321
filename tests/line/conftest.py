from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.core import Core, no_internal_errors


@pytest.fixture
def core() -> Iterator[Core]:
    """Return a broker, and see to it that nothing in it goes wrong unnoticed."""
    with no_internal_errors():
        yield Core()

"""`--write-figures` has the table of `make soak` written to docs/security.md."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-figures",
        action="store_true",
        help="write what the attacks cost the others to docs/security.md",
    )

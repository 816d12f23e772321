"""The option `--write-figures`, which writes the table of `make soak` to docs/security.md."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-figures",
        action="store_true",
        help="write what the attacks cost the others to docs/security.md",
    )

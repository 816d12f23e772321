"""Every row in the tables of docs/classics.md names existing tests."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
DOCUMENT = CHECKOUT / "docs/classics.md"
COLUMNS = 3
"""What the page says, what Pyrite does, and the tests."""
SYSTEMS = {"000", "001", "002", "003", "004"}
"""Systems with a section, by the number in the heading."""
NAME = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the test names in a file, none if it does not exist."""
    file = CHECKOUT / path
    if not file.is_file():
        return frozenset()
    tree = ast.parse(file.read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def problems(text: str) -> list[str]:
    """Return the errors in the tables of a section, each with its row."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    if not rows:
        return ["no table"]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    found = [] if len(cells[0]) == COLUMNS else [f"expected {COLUMNS} columns, not {cells[0]}"]
    if len(rows) < 3:
        found.append("no rows")
    for row, found_cells in zip(rows[2:], cells[2:], strict=True):
        if len(found_cells) != COLUMNS or not all(found_cells):
            found.append(f"{row}: expected {COLUMNS} columns, each with text")
            continue
        names = NAME.findall(found_cells[-1])
        rest = NAME.sub("", found_cells[-1]).strip(" ,;")
        if not names or rest:
            found.append(f"{row}: expected `tests/FILE.py::TEST`, one or more, and nothing else")
        found += [f"{row}: {path} has no test {test}" for path, test in names if test not in names_in(path)]
    return found


def sections() -> dict[str, str]:
    """Return the document's sections on a system, by number."""
    parts = re.split(r"^## ", DOCUMENT.read_text(), flags=re.MULTILINE)
    return {part[:3]: part for part in parts if re.match(r"\d{3} ", part)}


def test_every_system_has_a_section() -> None:
    assert set(sections()) >= SYSTEMS


@pytest.mark.parametrize("system", sections())
def test_every_row_names_tests_that_exist(system: str) -> None:
    assert problems(sections()[system]) == []


HEAD = "| the page | what Pyrite does | test |\n|---|---|---|\n"
GOOD = "`tests/classic/test_documentation.py::test_a_wrong_row_is_detected`"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no table here", "no table"),
        (HEAD, "no rows"),
        ("| behaviour | test |\n|---|---|\n| a | b | " + GOOD + " |", "expected 3 columns, not"),
        (HEAD + f"| a | {GOOD} |", "expected 3 columns"),
        (HEAD + f"| a |  | {GOOD} |", "expected 3 columns"),
        (HEAD + "| a | b |  |", "expected 3 columns"),
        (HEAD + "| a | b | see above |", "one or more, and nothing else"),
        (HEAD + "| a | b | `test_documentation.py::test_a_wrong_row_is_detected` |", "one or more"),
        (HEAD + f"| a | b | {GOOD}, `test_shortened` |", "nothing else"),
        (
            HEAD + "| a | b | `tests/classic/test_documentation.py::test_nothing` |",
            "has no test test_nothing",
        ),
        (HEAD + "| a | b | `tests/classic/test_missing.py::test_it` |", "has no test test_it"),
    ],
)
def test_a_wrong_row_is_detected(text: str, problem: str) -> None:
    assert problem in "\n".join(problems(text))


def test_a_right_table_has_no_problems() -> None:
    assert problems(f"text\n\n{HEAD}| a \\| b | c | {GOOD}, {GOOD} |\n") == []

"""docs/conformance.md agrees with the citations of this suite."""

from __future__ import annotations

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
DOCUMENT = (ROOT / "docs" / "conformance.md").read_text()
STATEMENTS = (FOLDER / "statements.txt").read_text().split()
ROW = re.compile(r"^\| (MQTT-[\d.]+-\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/conformance/test_\w+\.py)::(test_\w+)`")
CITED = re.compile(r"\[(MQTT-[\d.]+-\d+)\]")


def rows() -> list[tuple[str, str, str]]:
    return [(row[1], row[2], row[3]) for row in ROW.finditer(DOCUMENT)]


def citations() -> dict[tuple[str, str], set[str]]:
    """Return the statements that each test of the suite cites, by file and name."""
    found = {}
    for path in FOLDER.glob("test_*.py"):
        source = path.read_text()
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                text = ast.get_source_segment(source, node) or ""
                found[path.relative_to(ROOT).as_posix(), node.name] = set(CITED.findall(text))
    return found


def test_every_statement_has_one_row() -> None:
    assert [statement for statement, _, _ in rows()] == STATEMENTS
    assert len(set(STATEMENTS)) == len(STATEMENTS)


def test_the_counts_of_the_introduction_are_right() -> None:
    tested = sum(bool(NAMED.search(shown)) for _, _, shown in rows())
    introduction = " ".join(DOCUMENT.split())
    assert f"MQTT 5.0 makes {len(STATEMENTS)} normative statements" in introduction
    assert f"{tested} have tests, and {len(STATEMENTS) - tested} bind only the client" in introduction


def test_every_row_names_tests_or_gives_a_reason() -> None:
    for statement, demand, shown in rows():
        assert demand.endswith((".", ".)")), statement
        assert NAMED.search(shown) or shown.startswith("Binds the client only: "), statement


def test_every_test_named_exists_and_cites_its_statement() -> None:
    cited = citations()
    for statement, _, shown in rows():
        for test in NAMED.findall(shown):
            assert test in cited, f"{statement}: there is no {'::'.join(test)}"
            assert statement in cited[test], f"{'::'.join(test)} does not cite [{statement}]"


def test_every_citation_is_in_the_document() -> None:
    named = {statement: set(NAMED.findall(shown)) for statement, _, shown in rows()}
    for test, statements in citations().items():
        for statement in statements:
            assert test in named.get(statement, ()), (
                f"{'::'.join(test)} cites [{statement}]: add it to the page"
            )

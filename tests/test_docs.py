"""Links and module names in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks import quoting

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        ROOT / "examples/README.md",
        ROOT / "benchmarks/RESULTS.md",
    ]
)


def text_of(page: Path) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"```.*?```|^    .*?$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_every_module_in_the_glossary_exists() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text()
    modules = set(re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", glossary)) - {"src/pyrite/"}
    assert len(modules) > 20
    assert [name for name in sorted(modules) if not (ROOT / "src/pyrite" / name).exists()] == []


def test_quoted_figures_are_those_of_the_results() -> None:
    known = quoting.figures((ROOT / "benchmarks/RESULTS.md").read_text())
    assert known
    for page in quoting.pages(ROOT):
        text = page.read_text()
        assert quoting.filled(text, known) == text, f"{page.name}: run `make bench`, or quoting.fill"


def test_a_throughput_in_the_documentation_is_quoted_from_the_results() -> None:
    for page in quoting.pages(ROOT):
        rest = quoting.QUOTE.sub("", page.read_text())
        assert re.findall(r"[0-9]{2,3},[0-9]{3}(?:,[0-9]{3})*(?:/s\b| messages a second)", rest) == [], (
            page.name
        )

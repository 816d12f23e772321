"""Figures that README.md and docs/ quote from RESULTS.md.

A quoted figure stands after a comment that names its row and column:
`<!-- bench:telemetry-qos1 pyrite -->123/s`. The text after the comment, up to a space, a bar or a
parenthesis, is replaced: the unit is joined to the number by a no-break space. Rows of the table of
every figure have columns such as `pyrite CPU/message`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

NO_BREAK = "\N{NO-BREAK SPACE}"
UNMEASURED = "unmeasured"
FIGURE = rf"(?:{UNMEASURED}|failed|[0-9](?:[0-9.,]*[0-9])?(?:{NO_BREAK}?[A-Za-zµ%/]+)?)"
"""A number with its unit; the full stop or comma after it belongs to the sentence."""
QUOTE = re.compile(rf"(<!-- bench:(\S+) ([^>]*?) -->)({FIGURE})?")


def figures(results: str) -> dict[tuple[str, str], str]:
    """Return the figures of RESULTS.md by row and column, as they are written there."""
    found: dict[tuple[str, str], str] = {}
    titles: list[str] = []
    for line in results.splitlines():
        if not line.startswith("|"):
            titles = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not titles:
            titles = cells
        elif cells[0].startswith("`"):
            row = cells[0].strip("`")
            if titles[1] == "broker":  # the table of every figure
                named = {
                    f"{cells[1]} {title}": cell for title, cell in zip(titles[2:], cells[2:], strict=True)
                }
            else:
                named = dict(zip(titles[1:], cells[1:], strict=True))
            for column, cell in named.items():
                text = re.split(r" [✓✗;(]|;", cell)[0].rstrip("*")
                if text:
                    found.setdefault((row, column), text)
    return found


def filled(text: str, known: dict[tuple[str, str], str]) -> str:
    """Return a page with its quotes as they are in RESULTS.md."""

    def quote(match: re.Match[str]) -> str:
        figure = known.get((match[2], match[3]), UNMEASURED)
        return match[1] + figure.replace(" ", NO_BREAK)

    return QUOTE.sub(quote, text)


def pages(root: Path) -> Iterator[Path]:
    """Yield the pages that may quote figures."""
    yield root / "README.md"
    yield from sorted((root / "docs").rglob("*.md"))


def fill(root: Path) -> list[Path]:
    """Update the quotes in all pages. Return the pages that changed."""
    known = figures((root / "benchmarks/RESULTS.md").read_text(encoding="utf-8"))
    changed = []
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        new = filled(text, known)
        if new != text:
            page.write_text(new, encoding="utf-8")
            changed.append(page)
    return changed

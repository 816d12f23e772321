"""Reports: Markdown with tables and pictures, and the figures beside it for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLUE, RED, GREEN, ORANGE, GREY = "#3b7dd8", "#c0392b", "#3f9b5f", "#b07a2a", "#8a8a8a"


@dataclass
class Report:
    """A report of one study, and what of it is said on the screen."""

    name: str
    folder: Path
    figures: dict[str, Any]
    findings: list[tuple[str, str]] = field(default_factory=list)
    """What was found, in a few words each."""
    _parts: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """Return where the report is."""
        return self.folder / f"{self.name}.md"

    def title(self, text: str) -> None:
        """Add the title, and how the report came about."""
        self._parts.append(f"# {text}")
        self.say(f"Written by `python -m studies {self.name}` from what it measured; the figures are in "
                 f"[{self.name}.json]({self.name}.json).")  # fmt: skip

    def section(self, text: str) -> None:
        """Add a heading."""
        self._parts.append(f"## {text}")

    def say(self, *sentences: str) -> None:
        """Add a paragraph; empty sentences are left out."""
        self._parts.append(_wrap(" ".join(sentence for sentence in sentences if sentence)))

    def points(self, points: Iterable[str]) -> None:
        """Add a list."""
        self._parts.append("\n".join(_wrap(f"- {point}", "  ") for point in points))

    def table(self, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Add a table."""
        lines = [list(head), ["---"] * len(head), *([_cell(value) for value in row] for row in rows)]
        self._parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))

    def find(self, what: str, value: str) -> None:
        """Note something that was found, for the table at the end."""
        self.findings.append((what, value))

    def picture(self, suffix: str, text: str, draw: Callable[[Path], None]) -> None:
        """Add a picture, which `draw` draws into the file that it is told."""
        name = f"{self.name}-{suffix}.png"
        self.folder.mkdir(parents=True, exist_ok=True)
        draw(self.folder / name)
        self._parts.append(f"![{text}]({name})")

    def machine(self, limits: dict[str, str]) -> None:
        """Add the machine's limits."""
        self.section("The machine")
        self.table(("", ""), limits.items())

    def write(self) -> None:
        """Write the report and its figures."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path.write_text("\n\n".join(self._parts) + "\n", encoding="utf-8")
        figures = json.dumps(self.figures, indent=1, ensure_ascii=False)
        self.path.with_suffix(".json").write_text(figures + "\n", encoding="utf-8")


def number(value: float) -> str:
    """Write a number with separators between thousands."""
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Write a number of bytes for people."""
    for unit, bytes_of in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= bytes_of:
            return f"{value / bytes_of:.1f} {unit}"
    return f"{value:.0f} bytes"


def drawing(rows: int, title: str, height: float = 2.3) -> tuple[Any, list[Any]]:
    """Begin a picture of panels that share their x axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, figsize=(9, 0.7 + height * rows), sharex=True, squeeze=False)
    figure.suptitle(title, fontsize=11)
    panels = list(axes[:, 0])
    for panel in panels:
        panel.grid(alpha=0.25)
        panel.tick_params(labelsize=8)
    return figure, panels


def save(figure: Any, panels: list[Any], path: Path, below: str = "seconds") -> None:
    """End a picture: its legends, what is below it, and the file."""
    from matplotlib import pyplot

    for panel in panels:
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=8, loc="best")
    panels[-1].set_xlabel(below, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def thinned(points: Sequence[Any], most: int = 2_000) -> Sequence[Any]:
    """Return at most so many of the points, evenly taken."""
    step = max(1, -(-len(points) // most))
    return points[::step]


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return number(value)
    return str(value)


def _wrap(text: str, indent: str = "") -> str:
    """Break a paragraph into lines of at most 110 characters."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > 110:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])

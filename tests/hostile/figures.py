"""The table of delays that attacks cause for regular clients, for the terminal and docs/security.md."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.catalogue import CATALOGUE
from tests.hostile.pair import RATE

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- figures of make soak: begin -->", "<!-- figures of make soak: end -->"
BUSY = 0.5
"""Load average at the start from which on other programs were running."""


@dataclass(frozen=True)
class Row:
    """Measurements during one attack; times are in seconds, memory is in MiB."""

    p50: float
    p99: float
    most: dict[str, int]
    """The most memory that each process had."""
    beside: dict[str, int]
    """What the attack measured itself."""


class Figures:
    """The measurements of one run."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.load = os.getloadavg()[0]
        self.idle: list[tuple[float, float]] = []
        self.rows: dict[str, Row] = {}

    def __str__(self) -> str:
        p50, p99 = (max(times) * 1e3 for times in zip(*self.idle, strict=True))
        busy = "Other programs were running" if self.load > BUSY else "Nothing else was running"
        lines = [
            f"{os.cpu_count()} cores, loopback, {self.seconds:g} s an attack, {RATE} messages a second.",
            f"{busy} (load average {self.load:.1f}). Without an attack: p50 {p50:.1f} ms, p99 {p99:.1f} ms.",
            "Memory is the most that each process had, in MiB.",
            "",
            "| Attack | Bounded by | p50, ms | p99, ms | Memory | Measured beside |",
            "|---|---|---|---|---|---|",
        ]
        for name, row in self.rows.items():
            about = CATALOGUE[name]
            memory = ", ".join(f"{process} {size}" for process, size in row.most.items())
            beside = ", ".join(f"{what} {value}" for what, value in row.beside.items())
            lines.append(
                f"| {about.attack} | {about.bound} | {row.p50 * 1e3:.1f} | {row.p99 * 1e3:.1f} "
                f"| {memory} | {beside} |"
            )
        return "\n".join(lines)

    def write(self, path: Path = SECURITY) -> None:
        """Put the table between the two markers of a document."""
        missing = sorted(CATALOGUE.keys() - self.rows.keys())
        if missing:
            raise ValueError(f"the table is written after a run of all attacks; not measured: {missing}")
        before, _, rest = path.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        path.write_text(f"{before}{BEGIN}\n{self}\n{END}{after}")

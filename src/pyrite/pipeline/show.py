"""Shows a pipeline's tables as text and plots."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from pyrite.pipeline.errors import ProjectError
from pyrite.pipeline.plots import draw
from pyrite.pipeline.project import Project
from pyrite.pipeline.tables import read_last, read_table, row_counts, table_names
from pyrite.process.terminal import printable

ORDER = {
    "quality": [("messages", "descending")],
    "topic_windows": [("start", "descending"), ("topic", "ascending")],
    "device_stats": [("device", "ascending"), ("field", "ascending")],
    "top_talkers": [("messages", "descending"), ("bytes", "descending")],
    "alerts": [("time", "descending")],
}
"""Sort order of the rows by table; NEWEST for all others."""
NEWEST = [("offset", "descending")]


def show(project: Project, rows: int, folder: Path, console: Console) -> int:
    """Print the first rows of each table, and draw plots into a folder; returns the exit code."""
    if not table_names(project):
        raise ProjectError(f"{project.folder} has no tables yet: run `pyrite pipeline run`")
    for name, count in row_counts(project).items():
        table = read_last(project, name, rows) if _order(name) == NEWEST else read_table(project, name)
        console.print(_printed(name, count, table, rows))
    for path in draw(project, folder):
        console.print(f"plot: {path}", highlight=False, soft_wrap=True)
    return 0


def _order(name: str) -> list[tuple[str, str]]:
    return ORDER.get("alerts" if name.startswith("alerts_") else name, NEWEST)


def _printed(name: str, count: int, table: pa.Table, rows: int) -> Table:
    if table.num_rows:
        table = table.take(pc.sort_indices(table, sort_keys=_order(name)))
    printed = Table(title=f"{name}: {count:,} rows", title_justify="left")
    # Leave out columns without values.
    shown = [column for column in table.column_names if table[column].null_count < table.num_rows]
    for column in shown:
        is_number = pa.types.is_integer(table[column].type) or pa.types.is_floating(table[column].type)
        printed.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in table.select(shown).slice(0, rows).to_pylist():
        printed.add_row(*[_text(row[column]) for column in shown])
    return printed


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, datetime):
        return (
            value.strftime("%H:%M:%S.%f")[:-3]
            if value.date() == datetime.now(value.tzinfo).date()
            else str(value)
        )
    if isinstance(value, bytes):
        return printable(value[:60].decode(errors="replace"))
    return printable(str(value))

"""What a pipeline has made: its tables as text, and plots of them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from pyrite.pipeline.plots import draw
from pyrite.pipeline.project import Project, ProjectError
from pyrite.pipeline.tables import read_table, table_names

ORDER = {
    "quality": [("messages", "descending")],
    "topic_windows": [("start", "descending"), ("topic", "ascending")],
    "device_stats": [("device", "ascending"), ("field", "ascending")],
    "top_talkers": [("messages", "descending"), ("bytes", "descending")],
    "alerts": [("time", "descending")],
}
"""How the rows of a table are sorted; those of others, by offset, the last first."""


def show(project: Project, rows: int, folder: Path, console: Console) -> int:
    """Print the first rows of each table, and draw plots into a folder; return the exit code."""
    names = table_names(project)
    if not names:
        raise ProjectError(f"{project.folder} has no tables yet; `pyrite pipeline run` makes them")
    tables = {name: read_table(project, name) for name in names}
    for name, table in tables.items():
        console.print(_printed(name, table, rows))
    for path in draw(tables, folder):
        console.print(f"plot: {path}", highlight=False, soft_wrap=True)
    return 0


def _printed(name: str, table: pa.Table, rows: int) -> Table:
    order = ORDER.get("alerts" if name.startswith("alerts_") else name, [("offset", "descending")])
    if table.num_rows:
        table = table.take(pc.sort_indices(table, sort_keys=order))
    printed = Table(title=f"{name}: {table.num_rows:,} rows", title_justify="left")
    # What no row has says nothing.
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
        return value[:60].decode(errors="replace")
    return str(value)

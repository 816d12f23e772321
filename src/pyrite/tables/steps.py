"""What must change in a table for it to hold the sealed segments of its stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Held(NamedTuple):
    """A data file of a table, or a segment: its first offset, and its rows."""

    base: int
    rows: int


class Step(NamedTuple):
    """One snapshot: names of files."""

    operation: str
    """append, replace, delete or overwrite, as Iceberg names them."""
    added: tuple[str, ...]
    removed: tuple[str, ...]


def steps(held: Mapping[str, Held], wanted: Mapping[str, Held], first: int) -> Sequence[Step]:
    """Return the steps from the files that a table holds to those it should hold.

    `first` is where the stream begins: files before it were dropped by retention.
    """
    removed = [name for name in held if name not in wanted]
    added = [name for name in wanted if name not in held]
    end = max((one.base for one in held.values()), default=-1)
    dropped = tuple(name for name in removed if held[name].base < first)
    out = tuple(name for name in removed if held[name].base >= first)
    into = tuple(name for name in added if wanted[name].base <= end)
    new = tuple(name for name in added if wanted[name].base > end)
    found = []
    if dropped:
        found.append(Step("delete", (), dropped))
    if out or into:
        same = sum(held[name].rows for name in out) == sum(wanted[name].rows for name in into)
        operation = "replace" if same else "overwrite" if into else "delete"
        found.append(Step(operation, into, out))
    if new:
        found.append(Step("append", new, ()))
    return found

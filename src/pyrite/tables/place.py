"""Where tables are: paths on this machine, and the locations that Iceberg's metadata states."""

from __future__ import annotations

from pathlib import Path

from pyrite.storage.folder import TABLES

CATALOG = "catalog.db"
NAMESPACE = "pyrite"
"""The name of the catalog, and of its one namespace."""
END = "pyrite.end-offset"
"""The snapshot property with the offset after the last message."""


class Place:
    """The tables of a data folder.

    Metadata states absolute locations. `location` is that of the data folder as readers see it, if they see
    it elsewhere than this machine does.
    """

    def __init__(self, data: Path, location: str = "") -> None:
        self.folder = data.resolve() / TABLES
        self.location = f"{location.rstrip('/') or f'file://{data.resolve()}'}/{TABLES}"

    @property
    def catalog(self) -> Path:
        """The catalog's database."""
        return self.folder / CATALOG

    def path(self, location: str) -> Path:
        """Return the path of a file; raise ValueError for a location outside of the tables."""
        rest = location.removeprefix(self.location + "/")
        path = self.folder / rest
        if rest == location or not path.resolve().is_relative_to(self.folder):
            raise ValueError(f"{location!r}: expected a location in {self.location!r}")
        return path

    def table(self, name: str) -> str:
        """Return the location of a table."""
        return f"{self.location}/{name}"

"""Iceberg's file access: files are safe on disk before a commit refers to them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.io import FileIO, InputFile, OutputFile

from pyrite.storage.files import Appending, Files
from pyrite.storage.folder import TABLES
from pyrite.tables.place import Place

if TYPE_CHECKING:
    from pyiceberg.io import InputStream, OutputStream

DATA, LOCATION = "pyrite.data", "pyrite.location"
"""The catalog's properties with the data folder, and its location as readers see it."""


class DurableIO(FileIO):
    """Reads and writes the files of tables in a data folder."""

    def __init__(self, properties: Any) -> None:
        super().__init__(properties)
        self._place = Place(Path(properties[DATA]), properties[LOCATION])

    def new_input(self, location: str) -> InputFile:
        return _Input(location, self._place.path(location))

    def new_output(self, location: str) -> OutputFile:
        return _Output(location, self._place.path(location))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        where = location if isinstance(location, str) else location.location
        self._place.path(where).unlink(missing_ok=True)


class _Input(InputFile):
    def __init__(self, location: str, path: Path) -> None:
        super().__init__(location)
        self._path = path

    def __len__(self) -> int:
        return self._path.stat().st_size

    def exists(self) -> bool:
        return self._path.exists()

    def open(self, seekable: bool = True) -> InputStream:
        return self._path.open("rb")


class _Output(OutputFile):
    def __init__(self, location: str, path: Path) -> None:
        super().__init__(location)
        self._path = path

    def __len__(self) -> int:
        return self._path.stat().st_size

    def exists(self) -> bool:
        return self._path.exists()

    def to_input_file(self) -> InputFile:
        return _Input(self.location, self._path)

    def create(self, overwrite: bool = False) -> OutputStream:
        if not overwrite and self._path.exists():
            raise FileExistsError(f"{self._path}: exists already")
        return _Durable(self._path)


class _Durable(Appending):
    """A file that is safe, with its name, when it is closed."""

    def __init__(self, path: Path) -> None:
        self._all = Files()
        make_folders(self._all, path.parent)
        self._path = path
        super().__init__(self._all, path)

    def close(self) -> None:
        if not self.closed:
            self.sync()
            super().close()
            self._all.sync_folder(self._path.parent)

    def __enter__(self) -> _Durable:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()


def make_folders(files: Files, folder: Path) -> None:
    """Make a folder of a table, for the broker's own user alone, with the folders above it."""
    if folder.name != TABLES and not folder.parent.is_dir():
        make_folders(files, folder.parent)
    if not folder.is_dir():
        files.make_folder(folder)
        files.sync_folder(folder.parent)

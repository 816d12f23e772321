"""The tables of a broker, kept up to date until it ends."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.exc import SQLAlchemyError

from pyrite.ipc.tables import ReportTable
from pyrite.storage.files import Files
from pyrite.tables.durable import DATA, LOCATION, DurableIO, make_folders
from pyrite.tables.place import NAMESPACE, Place
from pyrite.tables.table import StreamTable

logger = logging.getLogger(__name__)

INTERVAL = 0.5
"""Seconds between two looks at the streams' folders."""
MAX_RETRY = 30.0
"""Seconds after which a table that fails is tried again, at most."""


def open_catalog(place: Place, data: Path, location: str) -> SqlCatalog:
    """Open the catalog for writing; a damaged one is made anew, as the tables are derived from the log."""
    make_folders(Files(), place.folder)
    try:
        with sqlite3.connect(place.catalog) as database:
            sound = database.execute("PRAGMA quick_check").fetchone() == ("ok",)
    except sqlite3.DatabaseError:
        sound = False
    if not sound:
        logger.error("%s is damaged: the tables are made anew from the segments", place.catalog)
        place.catalog.unlink()
    catalog = SqlCatalog(
        NAMESPACE,
        **{
            "uri": f"sqlite:///{place.catalog}",
            "warehouse": place.location,
            "py-io-impl": f"{DurableIO.__module__}.{DurableIO.__name__}",
            DATA: str(data),
            LOCATION: location,
        },
    )
    place.catalog.chmod(0o600)
    catalog.create_namespace_if_not_exists(NAMESPACE)
    return catalog


class Keeper:
    """Keeps the tables of some streams up to date, in a thread."""

    def __init__(
        self,
        data: Path,
        location: str,
        keep: dict[str, float],
        report: Callable[[ReportTable], object] = lambda _: None,
        uptime: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keep` has the seconds for which snapshots of each stream are kept."""
        self._place = Place(data, location)
        catalog = open_catalog(self._place, data, location)
        folders = {name: data / "streams" / name for name in keep}
        self._tables = {
            name: StreamTable(catalog, self._place, folder, keep[name], uptime)
            for name, folder in folders.items()
        }
        self._report = report
        self._failures: dict[str, tuple[str, float, float]] = {}
        """By table: why it failed, when it is tried again, and after how many seconds."""

    def run(self, stopped: threading.Event) -> None:
        """Work until the event is set."""
        while not stopped.is_set():
            for name in self._tables:
                self.work(name)
            stopped.wait(INTERVAL)

    def work(self, name: str) -> None:
        """Bring one table up to date; a failure is logged once, and it is tried again."""
        table = self._tables[name]
        failure, again, delay = self._failures.get(name, ("", 0.0, INTERVAL))
        now = time.monotonic()
        if now < again:
            return
        began = time.process_time()
        try:
            changed = table.work()
        except FileNotFoundError as error:
            # The stream's folder comes with its first message; a segment was merged while it was looked at.
            logger.debug("table %s: %s", name, error)
            return
        except Exception as error:  # of any kind: the other tables must go on
            expected = isinstance(error, OSError | SQLAlchemyError)
            text = str(error).partition("\n")[0] if expected else repr(error)
            if text != failure:
                logger.warning("table %s: %s", name, text, exc_info=None if expected else error)
            self._failures[name] = text, now + delay, min(2 * delay, MAX_RETRY)
            return
        if failure:
            del self._failures[name]
            logger.warning("table %s: it is up to date again (was: %s)", name, failure)
        if changed:
            holds = table.holds()
            took = time.process_time() - began
            logger.debug("table %s: %d rows in %d files; %.3f s", name, holds.rows, holds.files, took)
            self._report(ReportTable(name, holds.rows, holds.files, holds.snapshots, holds.end, took))

"""The log as Spark's processes see it: a folder, or a broker reached through Arrow Flight."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from pyrite.spark.options import LogLocation
from pyrite.storage.bulk import LogFolder
from pyrite.storage.query import QueryError

if TYPE_CHECKING:
    from pyrite.client.log import FlightLog

FIRST_CONTACT = 5.0
"""Seconds after which a broker that has never answered is taken for a wrong address."""

Log: TypeAlias = Union[LogFolder, "FlightLog"]


@lru_cache(maxsize=16)
def open_log(location: LogLocation, in_executor: bool = False) -> Log:
    """Return the log at a location; cached for each process.

    A broker that was never reached may have a wrong address, so the driver gives up early. An executor knows
    that the driver has reached the broker.
    """
    if location.path is not None:
        return open_folder(location.path)
    return open_broker(location) if in_executor else connect(location, first=FIRST_CONTACT)


def check_stream(location: LogLocation, stream: str) -> None:
    """Raise QueryError for an unknown stream, ConnectionError for a broker that does not answer."""
    open_log(location).bounds(stream)


def open_folder(path: Path) -> LogFolder:
    """Return the log in a folder; raise QueryError if there is none."""
    if not (path / "streams").is_dir():
        raise QueryError(f"option path: no log in {path}; expected the data folder of a broker")
    return LogFolder(path)


@lru_cache(maxsize=16)
def open_broker(location: LogLocation) -> FlightLog:
    """Return a connection to a broker, for reading or publishing."""
    return connect(location)


def connect(location: LogLocation, first: float | None = None) -> FlightLog:
    """Return a connection to a broker; until it has answered once, calls take `first` seconds at most."""
    from pyrite.client.log import FlightLog  # imported late: reading a folder does not need it

    assert location.broker is not None
    return FlightLog(
        location.broker,
        username=location.username,
        password=location.password,
        token=location.token,
        ca_file=location.ca_file,
        cert_file=location.cert_file,
        key_file=location.key_file,
        first_answer=first,
    )

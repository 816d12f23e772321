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

Log: TypeAlias = Union[LogFolder, "FlightLog"]


@lru_cache(maxsize=16)
def open_log(location: LogLocation) -> Log:
    """Return the log at a location; cached for each process."""
    return open_folder(location.path) if location.path is not None else open_broker(location)


def check_stream(location: LogLocation, stream: str) -> None:
    """Raise QueryError for an unknown stream; an unreachable broker is not an error here."""
    if location.path is not None:
        open_folder(location.path).bounds(stream)
        return
    try:
        with connect(location, retry=0.0) as broker:
            broker.bounds(stream)
    except ConnectionError:
        pass  # the query waits for the broker


def open_folder(path: Path) -> LogFolder:
    """Return the log in a folder; raise QueryError if there is none."""
    if not (path / "streams").is_dir():
        raise QueryError(f"option path: no log in {path}; expected the data folder of a broker")
    return LogFolder(path)


@lru_cache(maxsize=16)
def open_broker(location: LogLocation) -> FlightLog:
    """Return a connection to a broker, for reading or publishing."""
    from pyrite.client.log import RETRY_SECONDS

    return connect(location, RETRY_SECONDS)


def connect(location: LogLocation, retry: float) -> FlightLog:
    """Return a connection to a broker; unanswered calls are retried for `retry` seconds."""
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
        retry=retry,
    )

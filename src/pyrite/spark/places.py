"""The log as Spark's processes see it: a folder, or a broker reached through Arrow Flight."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from pyrite.spark.options import Place
from pyrite.storage.bulk import LogFolder
from pyrite.storage.query import QueryError

if TYPE_CHECKING:
    from pyrite.client.log import FlightLog

Log: TypeAlias = Union[LogFolder, "FlightLog"]


@lru_cache(maxsize=16)
def open_log(place: Place) -> Log:
    """Return the log at a place; each process keeps it for the next call."""
    return open_folder(place.path) if place.path is not None else open_broker(place)


def check_stream(place: Place, stream: str) -> None:
    """Raise QueryError for an unknown stream; a broker that does not answer is not an error here."""
    if place.path is not None:
        open_folder(place.path).bounds(stream)
        return
    try:
        with connect(place, retry=0.0) as broker:
            broker.bounds(stream)
    except ConnectionError:
        pass  # the query waits for the broker


def open_folder(path: Path) -> LogFolder:
    """Return the log in a folder; raise QueryError if there is none."""
    if not (path / "streams").is_dir():
        raise QueryError(f"option path: no log in {path}; expected the data folder of a broker")
    return LogFolder(path)


@lru_cache(maxsize=16)
def open_broker(place: Place) -> FlightLog:
    """Return a broker to read from or to publish to."""
    from pyrite.client.log import RETRY_SECONDS

    return connect(place, RETRY_SECONDS)


def connect(place: Place, retry: float) -> FlightLog:
    """Return a broker; `retry` is how many seconds to retry if it does not answer."""
    from pyrite.client.log import FlightLog  # imported late: reading a folder does not need it

    assert place.broker is not None
    return FlightLog(
        place.broker,
        username=place.username,
        password=place.password,
        token=place.token,
        ca_file=place.ca_file,
        cert_file=place.cert_file,
        key_file=place.key_file,
        retry=retry,
    )

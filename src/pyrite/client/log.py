"""The log of a broker, read and written in bulk over Arrow Flight.

from pyrite.client import read_log

table = read_log("flight://127.0.0.1:8815", topic="sensors/#", start="-1h")
frame = table.to_pandas()  # or polars.from_arrow(table)
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight

from pyrite.storage.query import COLUMNS, Bounds, DataLoss, Query, QueryError

RETRY_SECONDS = 60.0
"""Seconds for which a call to an unreachable broker is retried."""
FIRST_DELAY = 0.05
MAX_DELAY = 2.0
"""The first and the longest delay between retries, in seconds."""

PORTS = {"flight": 8815, "flights": 8816}
PART_SIZE = 32 * 1024 * 1024
"""Size of a staged part, in bytes."""

T = TypeVar("T")
_REFUSED_INPUT = re.compile(r"GOAWAY received; Error code: 11; Debug Text: not accepted: ([^)]*)")
_KINDS = {b"QueryError": QueryError, b"DataLoss": DataLoss}


class StagedRows(NamedTuple):
    """Rows staged for a sink: the names of the parts, and the number of rows in all of them."""

    parts: list[str]
    rows: int


class FlightLog:
    """The log of a broker. Calls that get no answer are retried for up to `retry` seconds.

    With `first_answer`, a broker that has never answered is given up after that many seconds, as its address
    may be wrong.

    With TLS, `ca_file` is a PEM file with trusted certificate authorities, instead of the system's.
    `cert_file` is a client certificate, with its key unless that is in `key_file`.
    """

    def __init__(
        self,
        url: str,
        *,
        username: str | None = None,
        password: str | None = None,
        token: str | None = None,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        retry: float = RETRY_SECONDS,
        first_answer: float | None = None,
    ) -> None:
        self.url = url
        self._location = location_of(url)
        if username is not None and token is not None:
            raise QueryError("expected either user name and password, or a token")
        if password is not None and username is None:
            raise QueryError("a password needs a user name")
        if url.startswith("flight:") and not (ca_file is cert_file is key_file is None):
            raise QueryError("ca_file, cert_file and key_file need a flights:// URL")
        self._tls = _tls_options(ca_file, cert_file, key_file)
        self._retry = retry
        self._first_answer = first_answer
        """None once the broker has answered."""
        headers = []
        if username is not None:
            given = base64.b64encode(f"{username}:{password or ''}".encode())
            headers.append((b"authorization", b"Basic " + given))
        elif token is not None:
            headers.append((b"authorization", b"Bearer " + token.encode()))
        self._headers = headers
        self._options = flight.FlightCallOptions(headers=headers)
        self._client: flight.FlightClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> flight.FlightClient:
        if self._client is None:
            self._client = flight.FlightClient(self._location, **self._tls)
        return self._client

    def _persist(self, call: Callable[[], T]) -> T:
        """Make a call, with retries while the broker is unreachable; raises the error that the broker
        reported.
        """
        backoff = _Backoff(self._retry if self._first_answer is None else self._first_answer)
        while True:
            try:
                found = call()
                self._first_answer = None
                return found
            except flight.FlightError as error:
                self._failed(error, backoff)

    def _failed(self, error: flight.FlightError, backoff: _Backoff) -> None:
        """Raise the exception for an error, or wait before a retry."""
        kind = _KINDS.get(bytes(error.extra_info or b""))
        if kind is not None:
            raise kind(_text(error)) from None
        if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
            raise PermissionError(f"{self.url}: {_text(error)}") from None
        unreached = self._first_answer is not None and isinstance(error, flight.FlightTimedOutError)
        if not isinstance(error, flight.FlightUnavailableError) and not unreached:
            raise error
        self.close()
        refusal = _refused_input(error)
        if refusal:  # a retry would be refused as well
            raise QueryError(f"{self.url}: the broker refused the data: {refusal}") from None
        if "certificate verify failed" in str(error).lower().replace(
            "_", " "
        ):  # and will not be trusted later
            raise ConnectionError(
                f"{self.url}: the broker's certificate is not trusted (certificate verify failed); "
                "pass the PEM file of its authority (caFile in Spark, ca_file in Python)"
            ) from None
        if not backoff.wait():
            raise ConnectionError(f"{self.url}: no answer: {_text(error)}") from None

    def _act(self, action: str, **asked: Any) -> dict[str, Any]:
        def call() -> dict[str, Any]:
            body = json.dumps(asked).encode()
            options = self._options
            if self._first_answer is not None:  # an address may lead nowhere
                options = flight.FlightCallOptions(timeout=self._first_answer, headers=self._headers)
            (result,) = self._connected().do_action(flight.Action(action, body), options)
            found: dict[str, Any] = json.loads(result.body.to_pybytes())
            return found

        return self._persist(call)

    # Reading

    def streams(self) -> list[str]:
        """Return the names of the streams."""

        def call() -> list[str]:
            found = self._connected().list_flights(b"", self._options)
            return [info.descriptor.path[0].decode() for info in found]

        return self._persist(call)

    def bounds(self, stream: str) -> Bounds:
        """Return the first offset and the offset after the last."""
        return Bounds(**self._act("bounds", stream=stream))

    def offset(self, stream: str, position: str) -> int:
        """Return the offset of a position, such as `earliest`, 4711 or `-1h`."""
        found: int = self._act("offset", stream=stream, position=position)["offset"]
        return found

    def check(self, query: Query) -> None:
        """Raise PermissionError unless all that a query asks for may be read."""
        self._act("check", topics=list(query.topics))

    def progress(self, reader: str, query: Query, offset: int) -> None:
        """Tell the broker, for its operator, how far the reader of a query has come."""
        self._act("progress", reader=reader, stream=query.stream, topics=list(query.topics), offset=offset)

    def advance(self, stream: str, start: int, messages: int | None, size: int | None) -> int:
        """Return the end of a range from `start` with at most this many messages and bytes."""
        asked = {"stream": stream, "start": start, "messages": messages, "bytes": size}
        found: int = self._act("advance", **asked)["offset"]
        return found

    def split(self, stream: str, start: int, stop: int, parts: int) -> list[tuple[int, int]]:
        """Split a range into at most `parts` ranges with about the same number of messages."""
        asked = {**asdict(Query(stream, start, stop)), "parts": parts}
        descriptor = flight.FlightDescriptor.for_command(json.dumps(asked).encode())
        info = self._persist(lambda: self._connected().get_flight_info(descriptor, self._options))
        found = [Query.from_json(endpoint.ticket.ticket) for endpoint in info.endpoints]
        return [(one.start, one.stop) for one in found]

    def read(
        self, query: Query, report: Callable[[str], object] = lambda _: None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a query, in order; continues after a lost connection.

        `report` is called with a description of every range that was skipped.
        """
        backoff = _Backoff(self._retry)
        while True:
            try:
                reader = self._connected().do_get(flight.Ticket(query.to_json()), self._options)
                while True:
                    try:
                        chunk = reader.read_chunk()
                    except StopIteration:
                        return
                    told = json.loads(chunk.app_metadata.to_pybytes())
                    for what in told["skipped"]:
                        report(what)
                    if chunk.data.num_rows:
                        yield chunk.data
                    query = query.part(told["after"], query.stop)
                    backoff = _Backoff(self._retry)
            except flight.FlightError as error:
                self._failed(error, backoff)

    def table(self, query: Query) -> pa.Table:
        """Return all messages of a query as a table."""
        return pa.Table.from_batches(self.read(query), query.schema)

    # Writing

    def stage(self, sink: str, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> StagedRows:
        """Stage rows for a later commit; they are on the broker's disk when this returns.

        The rows are sent in parts, each of which is kept in memory until it is acknowledged, and sent again
        if need be. Part names start with `name`; an existing part of the same name is replaced.
        """
        parts: list[str] = []
        rows = size = 0
        waiting: list[pa.RecordBatch] = []
        try:
            for batch in batches:
                waiting.append(batch)
                rows += batch.num_rows
                size += batch.nbytes
                if size >= PART_SIZE:
                    parts.append(self._stage(sink, f"{name}-{len(parts)}", schema, waiting))
                    waiting, size = [], 0
            if waiting:
                parts.append(self._stage(sink, f"{name}-{len(parts)}", schema, waiting))
        except Exception:
            if parts:
                self.abort(sink, parts)
            raise
        return StagedRows(parts, rows)

    def _stage(self, sink: str, part: str, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> str:
        command = json.dumps({"sink": sink, "part": part}).encode()

        def call() -> None:
            descriptor = flight.FlightDescriptor.for_command(command)
            writer, answers = self._connected().do_put(descriptor, schema, self._options)
            with writer:
                for batch in batches:
                    writer.write_batch(batch)
                writer.done_writing()
                answers.read()

        self._persist(call)
        return part

    def commit(self, sink: str, batch: int, parts: Sequence[str]) -> bool:
        """Publish staged parts, in this order, once per batch of a sink; False if the batch was already
        committed.
        """
        committed: bool = self._act("commit", sink=sink, batch=batch, parts=list(parts))["committed"]
        return committed

    def abort(self, sink: str, parts: Sequence[str] | None = None) -> None:
        """Delete staged parts; without `parts`, all of a sink, and reject parts still being staged."""
        self._act("abort", sink=sink, parts=None if parts is None else list(parts))


def location_of(url: str) -> str:
    """Convert a broker's URL to a Flight location; raises QueryError for anything else."""
    if "@" in url:  # not quoted, as it may contain a password
        raise QueryError("the broker's URL must not contain a user name or password; pass them as options")
    scheme, host, port, more = "", None, None, ""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
        more = parts.path.removeprefix("/") + parts.query + parts.fragment
    except ValueError:
        pass  # invalid port or address
    if scheme not in PORTS or not host or port == 0 or more:
        raise QueryError(f"expected flight://HOST:PORT or flights://HOST:PORT, not {url!r}")
    host = f"[{host}]" if ":" in host else host
    return f"grpc{'+tls' if scheme == 'flights' else ''}://{host}:{port or PORTS[scheme]}"


def _tls_options(ca_file: str | None, cert_file: str | None, key_file: str | None) -> dict[str, bytes]:
    """Return TLS options as keyword arguments of FlightClient."""
    options = {}
    if ca_file is not None:
        options["tls_root_certs"] = Path(ca_file).read_bytes()
    if cert_file is not None:
        options["cert_chain"] = Path(cert_file).read_bytes()
        options["private_key"] = Path(key_file or cert_file).read_bytes()
    elif key_file is not None:
        raise QueryError("key_file needs cert_file")
    return options


class _Backoff:
    """Delays between retries, and a deadline."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._next = FIRST_DELAY

    def wait(self) -> bool:
        """Wait before the next retry; return False if the deadline would pass."""
        if time.monotonic() + self._next > self._until:
            return False
        time.sleep(self._next)
        self._next = min(2 * self._next, MAX_DELAY)
        return True


def _text(error: BaseException) -> str:
    """Return the broker's message without gRPC's additions."""
    return str(error).partition(". gRPC client debug context:")[0].partition(". Detail:")[0]


def _refused_input(error: BaseException) -> str:
    """Return why the broker refused data, from its GOAWAY; "" if it did not."""
    found = _REFUSED_INPUT.search(str(error))
    return "" if found is None else found[1]


def read_log(
    url: str,
    *,
    stream: str = "default",
    topic: str | Sequence[str] = (),
    start: str | int = "earliest",
    stop: str | int = "latest",
    columns: Sequence[str] = COLUMNS,
    **connection: Any,
) -> pa.Table:
    """Return messages of a broker's log as an Arrow table; `.to_pandas()` converts it.

    `start` and `stop` are offsets, `earliest`, `latest`, times (`2026-01-31T12:00:00Z`) or times ago (`-1h`);
    `topic` is one filter or several. Other arguments go to `FlightLog`: username, password, ca_file, ...
    """
    with FlightLog(url, **connection) as log:
        first, last = log.offset(stream, str(start)), log.offset(stream, str(stop))
        topics = (topic,) if isinstance(topic, str) else tuple(topic)
        return log.table(Query(stream, first, last, topics, columns=tuple(columns)))

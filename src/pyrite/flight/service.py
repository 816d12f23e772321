"""The Arrow Flight service: reads the log, and stages and commits parts of sinks."""

from __future__ import annotations

import base64
import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from pyrite.ipc.client import BrokerClient
from pyrite.ipc.flight import (
    AbortSink,
    Authenticate,
    BeginRead,
    CheckRead,
    CheckRights,
    CheckRoom,
    CommitSink,
    NameStreams,
    NoteReader,
    StagePart,
)
from pyrite.ipc.messages import Admitted, Given, Request
from pyrite.ipc.problem import Problem
from pyrite.sinks.rows import check_rows, check_schema
from pyrite.sinks.staging import Staging, check_name
from pyrite.storage.bulk import LogFolder
from pyrite.storage.query import READER_NAME, Bounds, DataLoss, Query, QueryError, check_number, read_object

logger = logging.getLogger(__name__)

MAX_BATCH = 2**63 - 1
"""The largest batch number."""

RIGHTS = {"commit": ("publish",), "abort": ("publish", "admin")}
"""The rights by action, of which the caller needs one; other actions need pull."""

Json = dict[str, Any]
A = TypeVar("A")


def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
    """Authenticate the caller of a method, and convert exceptions to Flight errors."""

    def told(service: Service, context: flight.ServerCallContext, *arguments: Any) -> Any:
        try:
            service.admit(context)
            return call(service, context, *arguments)
        except Exception as error:
            raise as_flight_error(error) from None

    return told


def as_flight_error(error: Exception) -> Exception:
    """Return an exception as a Flight error; our client reads its type from extra_info."""
    told: Exception = error
    if isinstance(error, Problem):
        told = _refusal(error)
    elif isinstance(error, QueryError | DataLoss):
        told = _server_error(error)
    elif isinstance(error, FileNotFoundError):
        told = flight.FlightUnavailableError(str(error))
    elif not isinstance(error, flight.FlightError):
        logger.exception("internal error")
        told = flight.FlightInternalError(f"internal error: {error}")
    return told


def _refusal(problem: Problem) -> Exception:
    """Return the Flight error for a refusal of the broker."""
    told: Exception
    match problem.status:
        case 403:
            told = flight.FlightUnauthorizedError(problem.detail)
        case 429 | 503:
            told = flight.FlightUnavailableError(problem.detail)
        case 500:
            told = flight.FlightInternalError(problem.detail)
        case _:
            told = _server_error(QueryError(problem.detail))
    return told


def _server_error(error: Exception) -> Exception:
    told: Exception = flight.FlightServerError(str(error), extra_info=type(error).__name__.encode())
    return told


class Caller(flight.ServerMiddleware):  # type: ignore[misc]
    """The client that makes a call."""

    def __init__(self, authorization: str) -> None:
        self.authorization = authorization
        self.admitted: Admitted | None = None
        self.changes = 0
        """The number of changes of rights before the caller was authenticated."""
        self.until = math.inf
        """Expiry of the caller's token, in time.monotonic() seconds."""

    def sending_headers(self) -> dict[str, str]:
        return {}


class Callers(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Keeps the Authorization header of each call."""

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[Any]]) -> Caller:
        given = [
            value for name, values in headers.items() if name.lower() == "authorization" for value in values
        ]
        return Caller(str(given[0]) if given else "")


def given_in(authorization: str, peer: Given) -> Given:
    """Return the credentials of a call; a token is a password without a user name."""
    kind, _, value = authorization.partition(" ")
    name: str | None = None
    password: str | None = None
    if kind.lower() == "basic":
        try:
            name, _, password = base64.b64decode(value, validate=True).decode().partition(":")
        except ValueError:
            raise flight.FlightUnauthenticatedError("malformed user name and password") from None
    elif kind.lower() == "bearer":
        password = value
    return Given(name, password, peer.certificate, peer.address)


class Read:
    """The batches of one read, which the broker counts until the read ends or is abandoned."""

    def __init__(self, batches: Iterator[Any], ended: Callable[[], object]) -> None:
        self._batches = batches
        self._ended: Callable[[], object] | None = ended

    def __iter__(self) -> Read:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except BaseException:
            self._end()
            raise

    def __del__(self) -> None:
        """End an abandoned read."""
        self._end()

    def _end(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()


class Service(flight.FlightServerBase):  # type: ignore[misc]
    """The log of one data folder."""

    def __init__(
        self,
        log: LogFolder,
        staging: Staging,
        client: BrokerClient,
        location: str,
        peer: Callable[[str], Given | None],
    ) -> None:
        super().__init__(location, middleware={"caller": Callers()})
        self._peer = peer
        """Returns the client behind gRPC's name of a peer."""
        self._log = log
        self._staging = staging
        self._client = client
        self._changes = 0
        """The number of changes of rights."""

    def rights_changed(self) -> None:
        """Authenticate callers again, also those that are reading."""
        self._changes += 1

    def admit(self, context: flight.ServerCallContext) -> None:
        """Authenticate a caller."""
        self._admit(context.get_middleware("caller"), context.peer())

    def _admit(self, caller: Caller, peer_name: str) -> None:
        caller.changes = self._changes
        peer = self._peer(peer_name)
        if peer is None:
            raise flight.FlightUnavailableError("the connection is closed")
        given = given_in(caller.authorization, peer)
        try:
            found, _ = self._client.ask_from_thread(Authenticate(), given)
        except Problem as problem:
            if problem.status == 503:
                raise
            raise flight.FlightUnauthenticatedError(problem.detail) from None
        caller.admitted = found.caller
        caller.until = math.inf if found.seconds is None else time.monotonic() + found.seconds

    def _ask(self, context: flight.ServerCallContext, request: Request[A]) -> A:
        """Return the broker's answer to the caller; raise Problem if it refuses."""
        found, _ = self._client.ask_from_thread(request, context.get_middleware("caller").admitted)
        return found

    # Reading

    @guarded
    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """Return the streams."""
        names = self._ask(context, NameStreams())
        return iter([self._info(Query(name), [], self._log.bounds(name)) for name in names])

    @guarded
    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Return tickets for a Query, which is split into `parts`."""
        self._check_rights(context, "pull")
        if descriptor.command:
            asked = read_object(descriptor.command)
            parts = asked.pop("parts", 1)
            query = Query.from_json(json.dumps(asked).encode())
        elif descriptor.path:
            query, parts = Query(descriptor.path[0].decode()), 1
        else:
            raise QueryError("expected the name of a stream, or a query")
        bounds = self._log.bounds(query.stream)
        query = query.part(query.start, min(query.stop, bounds.end))
        split = self._log.split(query.stream, query.start, query.stop, parts)
        return self._info(query, [query.part(*one) for one in split], bounds)

    def _info(self, query: Query, parts: list[Query], bounds: Bounds) -> flight.FlightInfo:
        return flight.FlightInfo(
            query.schema,
            flight.FlightDescriptor.for_path(query.stream),
            [flight.FlightEndpoint(part.to_json(), []) for part in parts],
            sum(part.stop - part.start for part in parts) if parts else bounds.end - bounds.first,
            -1,
            app_metadata=json.dumps(bounds._asdict()).encode(),
        )

    @guarded
    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Send the messages of a query."""
        self._check_rights(context, "pull")
        query = Query.from_json(ticket.ticket)
        caller, peer, topics = context.get_middleware("caller"), context.peer(), list(query.topics) or ["#"]
        self._log.bounds(query.stream)  # raises an error for an unknown stream
        _, number = self._client.ask_from_thread(BeginRead(topics), caller.admitted)

        def check() -> None:
            if caller.changes != self._changes or time.monotonic() > caller.until:
                self._admit(caller, peer)
                self._client.ask_from_thread(CheckRead(topics), caller.admitted)

        read = Read(self._batches(query, check), partial(self._client.end_read, number))
        return flight.GeneratorStream(query.schema, read)

    def _check_rights(self, context: flight.ServerCallContext, *rights: str) -> None:
        """Refuse a caller without any of these rights, before any input is decoded."""
        self._ask(context, CheckRights(list(rights)))

    def _batches(self, query: Query, check: Callable[[], None]) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """Yield batches, each with the offset after it and what was skipped before it.

        `check` raises an error if the caller has lost the right to read.
        """
        skipped: list[str] = []
        after = query.start
        try:
            for batch, after in self._log.pieces(query, skipped.append):
                check()
                yield batch, _told(after, skipped)
        except Exception as error:
            raise as_flight_error(error) from None
        if skipped:
            yield pa.RecordBatch.from_pylist([], query.schema), _told(after, skipped)

    # Writing

    @guarded
    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Stage a part of a sink; answer with the number of durable rows."""
        self._check_rights(context, "publish")
        asked = read_object(descriptor.command)
        sink, part = check_name("sink", _text(asked, "sink")), check_name("part", _text(asked, "part"))
        check_schema(reader.schema)
        batches: Iterator[pa.RecordBatch]
        batches = (chunk.data for chunk in reader if chunk.data is not None and chunk.data.num_rows)
        first, topic = next(batches, None), None
        if first is not None:
            check_rows(first)
            topic = first.column("topic")[0].as_py()
            batches = chain([first], batches)
        name = self._ask(context, StagePart(sink, part, topic))

        def check_room() -> None:
            self._ask(context, CheckRoom(sink))

        rows = self._staging.write(sink, name, reader.schema, batches, check_room)
        try:
            check_room()  # the sink may have been aborted
        except Problem:
            self._ask(context, AbortSink(sink, [part]))
            raise
        writer.write(json.dumps({"rows": rows}).encode())

    # The rest

    @guarded
    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """Return the names and descriptions of actions."""
        return [(name, method.__doc__ or "") for name, method in self._actions().items()]

    def _actions(self) -> dict[str, Callable[[flight.ServerCallContext, Json], Json]]:
        return {
            "bounds": self._bounds,
            "offset": self._offset,
            "advance": self._advance,
            "check": self._check_read,
            "progress": self._progress,
            "commit": self._commit,
            "abort": self._abort,
        }

    @guarded
    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        """Perform an action: JSON in, JSON out."""
        method = self._actions().get(action.type)
        if method is None:
            raise QueryError(f"unknown action {action.type!r}; expected {', '.join(self._actions())}")
        self._check_rights(context, *RIGHTS.get(action.type, ("pull",)))
        asked = read_object(action.body.to_pybytes())
        return iter([flight.Result(json.dumps(method(context, asked)).encode())])

    def _bounds(self, context: flight.ServerCallContext, asked: Json) -> Json:
        """Return the offsets of a stream: {stream} -> {first, end}."""
        return self._log.bounds(_text(asked, "stream"))._asdict()

    def _check_read(self, context: flight.ServerCallContext, asked: Json) -> Json:
        """Refuse a caller that may not read some of these topics: {topics} -> {}."""
        self._ask(context, CheckRead(_topics(asked)))
        return {}

    def _progress(self, context: flight.ServerCallContext, asked: Json) -> Json:
        """Record how far a named reader has come: {reader, stream, topics, offset} -> {}."""
        name, stream, offset = _text(asked, "reader"), _text(asked, "stream"), asked.get("offset")
        if not READER_NAME.fullmatch(name):
            raise QueryError(f"reader={name!r}: expected up to 64 letters, digits, . - _")
        check_number("offset", offset, 0)
        assert isinstance(offset, int)
        self._ask(context, NoteReader(name, stream, _topics(asked), offset))
        return {}

    def _offset(self, context: flight.ServerCallContext, asked: Json) -> Json:
        """Return the offset of a position: {stream, position} -> {offset}."""
        return {"offset": self._log.offset(_text(asked, "stream"), _text(asked, "position"))}

    def _advance(self, context: flight.ServerCallContext, asked: Json) -> Json:
        """Return the offset after so many messages or bytes: {stream, start, messages, bytes} -> {offset}."""
        start: Any = asked.get("start")
        check_number("start", start)
        for name in ("messages", "bytes"):
            if asked.get(name) is not None:
                check_number(name, asked[name], 1)
        messages, size = asked.get("messages"), asked.get("bytes")
        return {"offset": self._log.advance(_text(asked, "stream"), start, messages, size)}

    def _commit(self, context: flight.ServerCallContext, asked: Json) -> Json:
        """Publish staged parts: {sink, batch, parts} -> {committed}."""
        batch, parts = asked.get("batch"), asked.get("parts")
        if not isinstance(batch, int) or isinstance(batch, bool) or parts is None:
            raise QueryError("commit: expected batch, a number, and parts, a list")
        if not 0 <= batch <= MAX_BATCH:
            raise QueryError(f"commit: expected a batch from 0 to {MAX_BATCH}, not {batch}")
        sink = check_name("sink", _text(asked, "sink"))
        return {"committed": self._ask(context, CommitSink(sink, batch, _parts(parts)))}

    def _abort(self, context: flight.ServerCallContext, asked: Json) -> Json:
        """Discard staged parts: {sink, parts} -> {}. Without parts, discard all, and refuse new ones."""
        parts = asked.get("parts")
        sink = check_name("sink", _text(asked, "sink"))
        self._ask(context, AbortSink(sink, None if parts is None else _parts(parts)))
        return {}


def _parts(given: object) -> list[str]:
    """Return names of parts; raise QueryError for other values."""
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise QueryError("expected parts, a list of names")
    return [check_name("part", one) for one in given]


def _told(after: int, skipped: list[str]) -> bytes:
    told = json.dumps({"after": after, "skipped": skipped}).encode()
    skipped.clear()
    return told


def _topics(asked: Json) -> list[str]:
    """Return the topic filters of a request; raise QueryError for an invalid one."""
    topics = asked.get("topics")
    if not isinstance(topics, list) or not all(isinstance(one, str) for one in topics):
        raise QueryError(f"topics={topics!r}: expected a list of topic filters")
    return list(Query(topics=tuple(topics)).topics) or ["#"]


def _text(asked: Json, name: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str):
        raise QueryError(f"expected {name}, a text")
    return value

"""What Arrow Flight is answered."""

from __future__ import annotations

import base64
import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from pyrite.flight.control import BrokerGone, Control
from pyrite.flight.peers import Peer
from pyrite.sinks.rows import check_rows, check_schema
from pyrite.sinks.staging import Staging, check_name
from pyrite.storage.bulk import LogFolder
from pyrite.storage.query import Bounds, DataLoss, Query, QueryError, check_number, read_object

logger = logging.getLogger(__name__)

MAX_BATCH = 2**63 - 1
"""The largest number that a batch may have."""

RIGHTS = {"commit": ("publish",), "abort": ("publish", "admin")}
"""The rights of which a caller needs one, by action; the other actions need pull."""

Reply = dict[str, Any]


def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
    """Have a method called only for who may come in, and its errors told to the client as what they are."""

    def told(service: Service, context: flight.ServerCallContext, *arguments: Any) -> Any:
        try:
            service.admit(context)
            return call(service, context, *arguments)
        except Exception as error:
            raise as_flight_error(error) from None

    return told


def as_flight_error(error: Exception) -> Exception:
    """Return an error as Flight sends it: with the name of its kind, for our own client."""
    told: Exception = error
    if isinstance(error, QueryError | DataLoss):
        told = flight.FlightServerError(str(error), extra_info=type(error).__name__.encode())
    elif isinstance(error, BrokerGone | FileNotFoundError):
        told = flight.FlightUnavailableError(str(error))
    elif not isinstance(error, flight.FlightError):
        logger.exception("internal error")
        told = flight.FlightInternalError(f"internal error: {error}")
    return told


class Caller(flight.ServerMiddleware):  # type: ignore[misc]
    """Who makes a call: what was given of a name and a password, and the name under which it came in."""

    def __init__(self, given: str) -> None:
        self.given = given
        self.address = ""
        self.who: Any = None
        """What the broker calls them."""
        self.changes = 0
        """What the broker had said of changes when it let them in."""
        self.until = math.inf
        """When they have to come again, as time.monotonic has it: a token expires."""

    def sending_headers(self) -> dict[str, str]:
        """Send none of our own."""
        return {}


class Callers(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Keeps what a call says of who makes it."""

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[Any]]) -> Caller:
        """Let a call begin."""
        given = [
            value for name, values in headers.items() if name.lower() == "authorization" for value in values
        ]
        return Caller(str(given[0]) if given else "")


def credentials_in(given: str) -> Reply:
    """Return the name and the password that a call gives; a token is a password without a name."""
    kind, _, value = given.partition(" ")
    if kind.lower() == "basic":
        try:
            name, _, password = base64.b64decode(value, validate=True).decode().partition(":")
        except ValueError:
            raise flight.FlightUnauthenticatedError("the user name and password cannot be read") from None
        return {"username": name, "password": password}
    return {"username": None, "password": value if kind.lower() == "bearer" else None}


class Read:
    """The batches of one read; the broker counts it until it is over, or no one wants it any longer."""

    def __init__(self, batches: Iterator[Any], ended: Callable[[], object]) -> None:
        self._batches = batches
        self._ended: Callable[[], object] | None = ended

    def __iter__(self) -> Read:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch."""
        try:
            return next(self._batches)
        except BaseException:
            self._end()
            raise

    def __del__(self) -> None:
        """End: the client has gone, or has read all."""
        self._end()

    def _end(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            try:
                ended()
            except BrokerGone:
                pass


class Service(flight.FlightServerBase):  # type: ignore[misc]
    """The log of one data folder."""

    def __init__(
        self,
        log: LogFolder,
        staging: Staging,
        control: Control,
        location: str,
        peer: Callable[[str], Peer | None],
    ) -> None:
        super().__init__(location, middleware={"caller": Callers()})
        self._peer = peer
        """Returns whom gRPC's name for the other end of a connection stands for."""
        self._log = log
        self._staging = staging
        self._control = control

    def admit(self, context: flight.ServerCallContext) -> None:
        """Ask the broker who it is that calls, and turn strangers away."""
        self._admit(context.get_middleware("caller"), context.peer())

    def _admit(self, caller: Caller, told: str) -> None:
        caller.changes = self._control.changes
        peer = self._peer(told)
        if peer is None:
            raise flight.FlightUnavailableError("the connection has ended")
        given = credentials_in(caller.given)
        answer = self._control.ask(ask="authenticate", **peer._asdict(), **given)
        if "refused" in answer:
            if answer["busy"]:
                raise flight.FlightUnavailableError(answer["refused"])
            raise flight.FlightUnauthenticatedError(answer["refused"])
        caller.who, caller.address = answer["who"], peer.address
        caller.until = math.inf if answer["seconds"] is None else time.monotonic() + answer["seconds"]

    def _ask(self, context: flight.ServerCallContext, ask: str, **question: Any) -> Reply:
        """Ask the broker for the caller; raise an error if the caller may not, or something is wrong."""
        return self._ask_for(context.get_middleware("caller"), ask, **question)

    def _ask_for(self, caller: Caller, ask: str, **question: Any) -> Reply:
        answer = self._control.ask(ask=ask, who=caller.who, address=caller.address, **question)
        if answer.get("busy"):
            raise flight.FlightUnavailableError(answer["busy"])
        if "refused" in answer:
            raise flight.FlightUnauthorizedError(answer["refused"])
        if answer.get("wrong"):
            raise QueryError(answer["wrong"])
        return answer

    # Reading

    @guarded
    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """Return the streams."""
        names = self._ask(context, "streams")["streams"]
        return iter([self._info(Query(name), [], self._log.bounds(name)) for name in names])

    @guarded
    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Return how to read what is asked for: a Query, of which `parts` says into how many to split it."""
        self._may(context, "pull")
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
        """Send the messages that a query asks for."""
        self._may(context, "pull")
        query = Query.from_json(ticket.ticket)
        caller, told, topics = context.get_middleware("caller"), context.peer(), list(query.topics) or ["#"]
        self._log.bounds(query.stream)  # an unknown stream is an error at once
        read = self._ask_for(caller, "read", topics=topics)["number"]

        def check() -> None:
            if caller.changes != self._control.changes or time.monotonic() > caller.until:
                self._admit(caller, told)
                self._ask_for(caller, "may read", topics=topics)

        return flight.GeneratorStream(query.schema, self._counted(read, self._batches(query, check)))

    def _counted(self, read: int, batches: Iterator[Any]) -> Read:
        return Read(batches, partial(self._control.say, ended=read))

    def _may(self, context: flight.ServerCallContext, *actions: str) -> None:
        """Refuse a caller that may do none of these on any topic, before anything is decoded."""
        self._ask(context, "may", actions=actions)

    def _batches(self, query: Query, check: Callable[[], None]) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """Yield batches, each with where the rest begins, and what was skipped since the one before.

        `check` raises an error if the caller may not read any more.
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
        """Stage a part of a sink; who sent it is told how many rows are safe."""
        self._may(context, "publish")
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
        own = self._ask(context, "stage", sink=sink, part=part, topic=topic)["part"]

        def grow() -> None:
            self._ask(context, "room", sink=sink)

        rows = self._staging.write(sink, own, reader.schema, batches, grow)
        try:
            grow()  # the sink may have been given up meanwhile
        except (QueryError, flight.FlightUnauthorizedError):
            self._ask(context, "abort", sink=sink, parts=[part])
            raise
        writer.write(json.dumps({"rows": rows}).encode())

    # The rest

    @guarded
    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """Return what may be done, and what that is."""
        return [(name, method.__doc__ or "") for name, method in self._actions().items()]

    def _actions(self) -> dict[str, Callable[[flight.ServerCallContext, Reply], Reply]]:
        return {
            "bounds": self._bounds,
            "offset": self._offset,
            "advance": self._advance,
            "commit": self._commit,
            "abort": self._abort,
        }

    @guarded
    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        """Do something small: JSON in, JSON out."""
        method = self._actions().get(action.type)
        if method is None:
            raise QueryError(f"there is no action {action.type!r}; there are: {', '.join(self._actions())}")
        self._may(context, *RIGHTS.get(action.type, ("pull",)))
        asked = read_object(action.body.to_pybytes())
        return iter([flight.Result(json.dumps(method(context, asked)).encode())])

    def _bounds(self, context: flight.ServerCallContext, asked: Reply) -> Reply:
        """Return which offsets a stream has: {stream} -> {first, end}."""
        return self._log.bounds(_text(asked, "stream"))._asdict()

    def _offset(self, context: flight.ServerCallContext, asked: Reply) -> Reply:
        """Return the offset that a position stands for: {stream, position} -> {offset}."""
        return {"offset": self._log.offset(_text(asked, "stream"), _text(asked, "position"))}

    def _advance(self, context: flight.ServerCallContext, asked: Reply) -> Reply:
        """Return where a part ends: {stream, start, messages, bytes} -> {offset}."""
        start: Any = asked.get("start")
        check_number("start", start)
        for name in ("messages", "bytes"):
            if asked.get(name) is not None:
                check_number(name, asked[name], 1)
        messages, size = asked.get("messages"), asked.get("bytes")
        return {"offset": self._log.advance(_text(asked, "stream"), start, messages, size)}

    def _commit(self, context: flight.ServerCallContext, asked: Reply) -> Reply:
        """Publish what was staged: {sink, batch, parts} -> {committed}."""
        batch, parts = asked.get("batch"), asked.get("parts")
        if not isinstance(batch, int) or isinstance(batch, bool) or parts is None:
            raise QueryError("commit: expected a number for batch, and a list for parts")
        if not 0 <= batch <= MAX_BATCH:
            raise QueryError(f"commit: expected a batch from 0 to {MAX_BATCH}, not {batch}")
        sink = check_name("sink", _text(asked, "sink"))
        answer = self._ask(context, "commit", sink=sink, batch=batch, parts=_parts(parts))
        return {"committed": answer["committed"]}

    def _abort(self, context: flight.ServerCallContext, asked: Reply) -> Reply:
        """Forget what was staged: {sink, parts} -> {}. Without parts all of it, and what is yet to come."""
        parts = asked.get("parts")
        sink = check_name("sink", _text(asked, "sink"))
        self._ask(context, "abort", sink=sink, parts=None if parts is None else _parts(parts))
        return {}


def _parts(given: object) -> list[str]:
    """Return names of parts; QueryError if it is anything else."""
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise QueryError("expected a list of names for parts")
    return [check_name("part", one) for one in given]


def _told(after: int, skipped: list[str]) -> bytes:
    told = json.dumps({"after": after, "skipped": skipped}).encode()
    skipped.clear()
    return told


def _text(asked: Reply, name: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str):
        raise QueryError(f"expected a text for {name}")
    return value

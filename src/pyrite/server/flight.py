"""The broker's side of a Flight process: its settings, and the handlers of its requests."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pyrite.broker.access import Accept, Credentials, Refuse
from pyrite.broker.core import Broker
from pyrite.ipc.flight import (
    AbortSink,
    Authenticate,
    BeginRead,
    CheckRead,
    CheckRights,
    CheckRoom,
    CommitSink,
    LetIn,
    NameStreams,
    NoteReader,
    StagePart,
)
from pyrite.ipc.messages import Admitted, FlightSettings, Given, Request
from pyrite.ipc.problem import Problem
from pyrite.ipc.server import Call, Handler
from pyrite.server.child import Child, ChildContext, log_settings, tls_settings
from pyrite.server.gate import Gate, answers, credentials_of, refused_log_in
from pyrite.server.listeners import Listener
from pyrite.server.log_readers import LogReaders
from pyrite.sinks.sinks import Sinks

MAX_TEMPORARY_PATH = 80
"""Maximum bytes of the path of temporary files: the path of a socket there has 23 more, and at most 107."""


class FlightProcess(Child):
    """One Flight listener."""

    name = "Flight"
    module = "pyrite.flight"

    def __init__(self, context: ChildContext, listener: Listener, sinks: Sinks, readers: LogReaders) -> None:
        super().__init__(context, listener)
        self._gate = Gate(self.broker, self.reads, self)
        self._handlers = self._gate.handlers(
            AccessRequests(self.broker, self._gate, readers), SinkRequests(self.broker, sinks)
        )

    def listen(self) -> Listener:
        """Open the listener; raise OSError if the process could not open its sockets."""
        folder = tempfile.gettempdir()
        if len(os.fsencode(folder)) > MAX_TEMPORARY_PATH:
            raise OSError(0, f"{folder}: path too long for sockets; set TMPDIR to a shorter one")
        return super().listen()

    def settings(self) -> FlightSettings:
        """Return the settings of the process."""
        config, limits = self.config, self.config.limits
        return FlightSettings(
            data=str(config.data),
            sockets=self.descriptors,
            logging=log_settings(config),
            tls=tls_settings(config.tls) if self.listener.tls else None,
            max_connections=limits.max_connections,
            connect_timeout=limits.connect_timeout,
        )

    def handlers(self) -> Mapping[type[Request[Any]], Handler]:
        """Return the handlers of the process's requests."""
        return self._handlers

    def forget_callers(self) -> None:
        """Authenticate callers again, because users or rules may have changed."""
        self._gate.identity.forget()


class AccessRequests:
    """Answers requests to authenticate, and to read."""

    def __init__(self, broker: Broker, gate: Gate, readers: LogReaders) -> None:
        self._broker = broker
        self._gate = gate
        self._readers = readers

    @answers(Authenticate)
    def authenticate(self, _: Credentials, request: Authenticate, call: Call[LetIn]) -> None:
        """Authenticate a client."""
        given = call.caller
        assert isinstance(given, Given)

        def decided(verdict: Accept | Refuse) -> None:
            if isinstance(verdict, Refuse):
                call.refuse(refused_log_in(verdict))
            else:
                caller = Admitted(verdict.username, sorted(verdict.groups), given.address)
                call.reply(LetIn(caller, verdict.seconds))

        self._gate.identity.admit(credentials_of(given), decided)

    @answers(CheckRights)
    def check_rights(self, caller: Credentials, request: CheckRights, call: Call[None]) -> None:
        """Refuse a caller without any of these rights on any topic."""
        refusal = self._broker.policy.refuse_everywhere(caller, request.rights)
        if refusal is not None:
            raise Problem(403, refusal.text)
        call.reply(None)

    @answers(NameStreams)
    def name_streams(self, caller: Credentials, request: NameStreams, call: Call[list[str]]) -> None:
        """Return the streams that the caller may read, at least in part."""
        policy = self._broker.policy
        call.reply(
            [
                stream.name
                for stream in self._broker.journal.streams
                if any(policy.refuse_everywhere(caller, ["pull"], one) is None for one in stream.filters)
            ]
        )

    @answers(BeginRead)
    def begin_read(self, caller: Credentials, request: BeginRead, call: Call[None]) -> None:
        """Check and begin a read, which the gate counts for the caller's quota."""
        self.check_read(caller, CheckRead(request.topics), call)

    @answers(CheckRead)
    def check_read(self, caller: Credentials, request: CheckRead, call: Call[None]) -> None:
        """Refuse a caller that may not read these topics."""
        self._check(caller, request.topics)
        call.reply(None)

    @answers(NoteReader)
    def note_reader(self, caller: Credentials, request: NoteReader, call: Call[None]) -> None:
        """Record how far a named reader has come."""
        self._check(caller, request.topics)
        streams = {one.name: one for one in self._broker.journal.streams}
        stream = streams.get(request.stream)
        if stream is None:
            raise Problem(404, f"there is no stream {request.stream!r}")
        refusal = self._readers.note(request.name, caller.username or caller.address, stream, request.offset)
        if refusal:
            raise Problem(429, refusal)
        call.reply(None)

    def _check(self, caller: Credentials, topics: Sequence[str]) -> None:
        for topic in topics:
            refusal = self._broker.policy.refuse_pull(caller, topic.encode())
            if refusal is not None:
                raise Problem(403, refusal.text)


class SinkRequests:
    """Answers requests about sinks. A sink belongs to the first user to commit to it."""

    def __init__(self, broker: Broker, sinks: Sinks) -> None:
        self._broker = broker
        self._sinks = sinks

    @answers(StagePart)
    def stage(self, caller: Credentials, request: StagePart, call: Call[str]) -> None:
        """Begin to stage a part; return the name of its file."""
        user = self._user(caller)
        if request.topic is not None:
            refusal = self._broker.policy.refuse_publish(caller, request.topic.encode())
            if refusal is not None:
                raise Problem(403 if refusal.is_unauthorized else 400, refusal.text)
        if request.topic is None or self._sinks.owner(request.sink) is not None:
            self._check_owner(caller, request.sink)
        part = _file_name(user, request.part)
        self._sinks.stage(request.sink, part, user, _replies(call, part))

    @answers(CheckRoom)
    def check_room(self, caller: Credentials, request: CheckRoom, call: Call[None]) -> None:
        """Refuse if there is no room to stage more."""
        self._check_owner(caller, request.sink)
        self._sinks.room(request.sink, self._user(caller), _replies(call, None))

    @answers(CommitSink)
    def commit(self, caller: Credentials, request: CommitSink, call: Call[bool]) -> None:
        """Publish the staged parts of a sink; answer False if the batch was committed before."""

        def done(committed: bool, wrong: str) -> None:
            _replies(call, committed)(wrong)

        self._check_owner(caller, request.sink)
        user = self._user(caller)
        parts = [_file_name(user, part) for part in request.parts]
        refuse = partial(self._broker.policy.refuse_publish, caller)
        self._sinks.commit(request.sink, request.batch, parts, refuse, done, user)

    @answers(AbortSink)
    def abort(self, caller: Credentials, request: AbortSink, call: Call[None]) -> None:
        """Discard staged parts or, without names, the sink; admins may discard any user's sink."""
        sink, user, done = request.sink, self._user(caller), _replies(call, None)
        owner = self._sinks.owner(sink)
        if user is not None and owner is None and not self._sinks.has_staged(sink, user):
            call.reply(None)  # nothing to discard
            return
        is_others = owner not in (None, user)
        if request.parts is None and is_others and self._broker.policy.refuse_admin(caller) is None:
            self._sinks.delete(sink, done)
            return
        self._check_owner(caller, sink)
        parts = None if request.parts is None else [_file_name(user, part) for part in request.parts]
        self._sinks.abort(sink, parts, done, user)

    def _user(self, caller: Credentials) -> str | None:
        """Return the name that owns the caller's sinks; None without access rules."""
        return (caller.username or "") if self._broker.access.checks_topics else None

    def _check_owner(self, caller: Credentials, sink: str) -> None:
        """Refuse a sink of another user, and one for which the caller has staged nothing."""
        user = self._user(caller)
        owner = self._sinks.owner(sink)
        if user is None or owner == user:
            return
        if owner is not None:
            raise Problem(403, f"sink {sink!r} belongs to another user: choose another name")
        if not self._sinks.has_staged(sink, user):
            raise Problem(400, f"nothing was staged for sink {sink!r}")


def _replies(call: Call[Any], answer: object) -> Callable[[str], None]:
    """Return a function that answers a call, or refuses it with an error text."""

    def done(wrong: str) -> None:
        if wrong:
            call.refuse(Problem(400, wrong))
        else:
            call.reply(answer)

    return done


def _file_name(user: str | None, part: str) -> str:
    """Return the file name of a part, with a prefix for each user."""
    if user is None:
        return part
    return f"{hashlib.blake2b(user.encode(), digest_size=8).hexdigest()}-{part}"

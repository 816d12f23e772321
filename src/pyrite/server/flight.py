"""The broker's side of a Flight process: its settings, and the handlers of its requests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
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
    StagePart,
)
from pyrite.ipc.messages import Admitted, FlightSettings, Given, Request
from pyrite.ipc.problem import Problem
from pyrite.ipc.server import Call, Handler
from pyrite.server.child import Child, ChildContext, log_settings, tls_settings
from pyrite.server.gate import Gate, answers, credentials_of, refused_log_in
from pyrite.server.listeners import Listener
from pyrite.sinks.sinks import Sinks


class FlightProcess(Child):
    """One Flight listener."""

    name = "Flight"
    module = "pyrite.flight"

    def __init__(self, context: ChildContext, listener: Listener, sinks: Sinks) -> None:
        super().__init__(context, listener)
        self._gate = Gate(self.broker, self.reads, self)
        self._handlers = self._gate.handlers(
            AccessRequests(self.broker, self._gate), SinkRequests(self.broker, sinks)
        )

    def settings(self) -> FlightSettings:
        """Return what the process needs to start."""
        config, limits = self.config, self.config.limits
        return FlightSettings(
            data=str(config.data),
            host=self.listener.host,
            port=self.listener.port,
            logging=log_settings(config),
            tls=tls_settings(config.tls) if self.listener.tls else None,
            max_connections=limits.max_connections,
            connect_timeout=limits.connect_timeout,
        )

    def handlers(self) -> Mapping[type[Request[Any]], Handler]:
        """Return the handlers of its requests."""
        return self._handlers

    def forget_callers(self) -> None:
        """Check again who makes requests: users or rules may have changed."""
        self._gate.identity.forget()


class AccessRequests:
    """Answers who may call, and read what."""

    def __init__(self, broker: Broker, gate: Gate) -> None:
        self._broker = broker
        self._gate = gate

    @answers(Authenticate)
    def authenticate(self, _: Credentials, request: Authenticate, call: Call[LetIn]) -> None:
        """Let a client in, if the access plug-in does."""
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
    def check_rights(self, who: Credentials, request: CheckRights, call: Call[None]) -> None:
        """Refuse a caller that has none of these rights on any topic."""
        access, rights = self._broker.access, request.rights
        if access.checks_topics and not any(access.may_within(right, who, "#") for right in rights):
            raise Problem(403, f"not authorized: {' or '.join(rights)}")
        call.reply(None)

    @answers(NameStreams)
    def name_streams(self, who: Credentials, request: NameStreams, call: Call[list[str]]) -> None:
        """Return the streams from which the caller may read something."""
        access = self._broker.access
        call.reply(
            [
                stream.name
                for stream in self._broker.journal.streams
                if not access.checks_topics
                or any(access.may_within("pull", who, topic.decode()) for topic in stream.filters)
            ]
        )

    @answers(BeginRead)
    def begin_read(self, who: Credentials, request: BeginRead, call: Call[None]) -> None:
        """Begin a read, which counts for the caller's quota."""
        self.check_read(who, CheckRead(request.topics), call)

    @answers(CheckRead)
    def check_read(self, who: Credentials, request: CheckRead, call: Call[None]) -> None:
        """Refuse a caller that may not read these topics."""
        access = self._broker.access
        for topic in request.topics:
            if access.checks_topics and not access.may_pull(who, topic):
                raise Problem(403, f"not authorized for {topic!r}")
        call.reply(None)


class SinkRequests:
    """Answers requests for sinks. A sink belongs to the user who first committed to it."""

    def __init__(self, broker: Broker, sinks: Sinks) -> None:
        self._broker = broker
        self._sinks = sinks

    @answers(StagePart)
    def stage(self, who: Credentials, request: StagePart, call: Call[str]) -> None:
        """Begin to stage a part; return the name of its file."""
        user = self._user(who)
        if request.topic is not None and not self._may_publish(who, request.topic):
            raise Problem(403, f"topic {request.topic!r}: not authorized")
        if request.topic is None or self._sinks.owner(request.sink) is not None:
            self._check_owner(who, request.sink)
        part = _file_name(user, request.part)
        self._sinks.stage(request.sink, part, user, _replies(call, part))

    @answers(CheckRoom)
    def check_room(self, who: Credentials, request: CheckRoom, call: Call[None]) -> None:
        """Refuse to stage more than there is room for."""
        self._check_owner(who, request.sink)
        self._sinks.room(request.sink, self._user(who), _replies(call, None))

    @answers(CommitSink)
    def commit(self, who: Credentials, request: CommitSink, call: Call[bool]) -> None:
        """Publish the staged parts of a sink; return whether it was done now, and not before."""

        def done(committed: bool, wrong: str) -> None:
            _replies(call, committed)(wrong)

        self._check_owner(who, request.sink)
        user = self._user(who)
        parts = [_file_name(user, part) for part in request.parts]
        may_publish = partial(self._may_publish, who)
        self._sinks.commit(request.sink, request.batch, parts, may_publish, done, user)

    @answers(AbortSink)
    def abort(self, who: Credentials, request: AbortSink, call: Call[None]) -> None:
        """Discard staged parts; without names of parts the sink, also that of another user for an admin."""
        sink, user, done = request.sink, self._user(who), _replies(call, None)
        owner = self._sinks.owner(sink)
        if user is not None and owner is None and not self._sinks.has_staged(sink, user):
            call.reply(None)  # there is nothing to discard
            return
        if request.parts is None and owner not in (None, user) and self._broker.access.may_admin(who, "#"):
            self._sinks.delete(sink, done)
            return
        self._check_owner(who, sink)
        parts = None if request.parts is None else [_file_name(user, part) for part in request.parts]
        self._sinks.abort(sink, parts, done, user)

    def _user(self, who: Credentials) -> str | None:
        """Return the name by which the caller's sinks are kept apart; None where names prove nothing."""
        return (who.username or "") if self._broker.access.checks_topics else None

    def _check_owner(self, who: Credentials, sink: str) -> None:
        """Refuse a sink of another user, or one for which the caller has staged nothing."""
        user = self._user(who)
        owner = self._sinks.owner(sink)
        if user is None or owner == user:
            return
        if owner is not None:
            raise Problem(403, f"sink {sink!r} is another user's: choose another name")
        if not self._sinks.has_staged(sink, user):
            raise Problem(400, f"nothing was staged for sink {sink!r}")

    def _may_publish(self, who: Credentials, topic: str) -> bool:
        access = self._broker.access
        return not access.checks_topics or access.may_publish(who, topic)


def _replies(call: Call[Any], answer: object) -> Callable[[str], None]:
    """Return what answers a call when the sinks are done: with a text for what is wrong, if anything is."""

    def done(wrong: str) -> None:
        if wrong:
            call.refuse(Problem(400, wrong))
        else:
            call.reply(answer)

    return done


def _file_name(user: str | None, part: str) -> str:
    """Return the name of a part's file, so that no user overwrites a part of another."""
    if user is None:
        return part
    return f"{hashlib.blake2b(user.encode(), digest_size=8).hexdigest()}-{part}"

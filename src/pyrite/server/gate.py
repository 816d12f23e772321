"""Between the requests of a child process and their handlers: log-in, and the quota on concurrent reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pyrite.broker.access import (
    CONNECTION_RATE_EXCEEDED,
    SERVER_BUSY,
    UNSPECIFIED,
    Accept,
    Credentials,
    Refuse,
)
from pyrite.broker.core import Broker
from pyrite.ipc.messages import Admitted, Given, LogIn, Request
from pyrite.ipc.problem import Problem
from pyrite.ipc.server import Call, Handler
from pyrite.server.identity import Identity
from pyrite.server.reads import Reads

R = TypeVar("R", bound=Request[Any])
S = TypeVar("S")

_STATUS = {SERVER_BUSY: 503, CONNECTION_RATE_EXCEEDED: 429, UNSPECIFIED: 500}
"""HTTP statuses of refused log-ins; 401 for all others."""
READ_RETRY = 1.0
"""Seconds after which a read that the quota refused may be tried again."""
_NOBODY = Credentials("", None, None, "")

Method = Callable[[S, Credentials, R, Call[Any]], object]
Bound = Callable[[Credentials, Any, Call[Any]], object]


def answers(*kinds: type[R]) -> Callable[[Method[S, R]], Method[S, R]]:
    """Mark a method as the handler of some kinds of requests.

    It gets the caller, the request and the call, and answers through the call or raises Problem.
    """

    def mark(method: Method[S, R]) -> Method[S, R]:
        method.answers = kinds  # type: ignore[attr-defined]
        return method

    return mark


def marked(subject: object) -> Iterator[tuple[type[Request[Any]], Bound]]:
    """Yield the methods of an object that are marked as handlers, each with the kind of its requests."""
    for name in dir(type(subject)):
        for kind in getattr(getattr(type(subject), name), "answers", ()):
            yield kind, getattr(subject, name)


class Gate:
    """Checks who makes the requests of one child process, before their handlers are called."""

    def __init__(self, broker: Broker, reads: Reads, process: object) -> None:
        self.identity = Identity(broker)
        self._reads = reads
        self._process = process
        """By which the reads of the process are known."""

    def handlers(self, *subjects: object) -> dict[type[Request[Any]], Handler]:
        """Return the handlers of these objects, each behind the checks that its kind of request needs."""
        return {
            kind: self._guarded(kind.log_in, self._counted(handle) if kind.is_read else handle)
            for subject in subjects
            for kind, handle in marked(subject)
        }

    def _guarded(self, log_in: LogIn, handle: Bound) -> Handler:
        if log_in is LogIn.NONE:
            return lambda call: handle(_NOBODY, call.request, call)

        def handler(call: Call[Any]) -> None:
            caller = call.caller
            if isinstance(caller, Admitted):
                groups = frozenset(caller.groups)
                who = Credentials("", caller.username, None, caller.address, groups=groups, is_accepted=True)
                handle(who, call.request, call)
                return
            assert caller is not None
            given = credentials_of(caller)

            def decided(verdict: Accept | Refuse) -> None:
                if isinstance(verdict, Refuse) and not (given.silent and log_in is LogIn.OPTIONAL):
                    call.refuse(refused_log_in(verdict))
                    return
                who = Credentials("", None, None, given.address, given.certificate)
                if isinstance(verdict, Accept):
                    who.become(verdict)
                call.attempt(lambda: handle(who, call.request, call))

            self.identity.admit(given, decided)

        return handler

    def _counted(self, handle: Bound) -> Bound:
        """Count a read for its user's quota; the child tells when it has ended."""

        def counted(who: Credentials, request: Request[Any], call: Call[Any]) -> None:
            refusal = self._reads.begin(self._process, call.number, who)
            if refusal:
                raise Problem(429, refusal, READ_RETRY)
            call.refused = lambda: self._reads.end(self._process, call.number)
            handle(who, request, call)

        return counted


def credentials_of(given: Given) -> Credentials:
    """Return what a client has shown of who it is, as the broker has it."""
    password = None if given.password is None else given.password.encode()
    return Credentials("", given.username, password, given.address, given.certificate)


def refused_log_in(verdict: Refuse) -> Problem:
    """Return the refusal of a log-in."""
    status = _STATUS.get(verdict.code, 401)
    return Problem(status, verdict.reason or "not authorized", verdict.seconds)

"""Checks before the handlers of a child process's requests: log-in, and the quota of concurrent reads."""

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
"""HTTP statuses of refused log-ins; 401 for other reasons."""
READ_RETRY = 1.0
"""Seconds after which a client may retry a read that the quota refused."""
_NOBODY = Credentials("", None, None, "")

Method = Callable[[S, Credentials, R, Call[Any]], object]
Bound = Callable[[Credentials, Any, Call[Any]], object]


def answers(*kinds: type[R]) -> Callable[[Method[S, R]], Method[S, R]]:
    """Mark a method as the handler of these kinds of requests.

    It is called with the caller, the request and the call; it answers through the call, or raises Problem.
    """

    def mark(method: Method[S, R]) -> Method[S, R]:
        method.answers = kinds  # type: ignore[attr-defined]
        return method

    return mark


def marked(subject: object) -> Iterator[tuple[type[Request[Any]], Bound]]:
    """Yield the methods of an object that are marked as handlers, with the kinds of their requests."""
    for name in dir(type(subject)):
        for kind in getattr(getattr(type(subject), name), "answers", ()):
            yield kind, getattr(subject, name)


class Gate:
    """Authenticates the callers of one child process, and counts their reads."""

    def __init__(self, broker: Broker, reads: Reads, process: object) -> None:
        self.identity = Identity(broker)
        self._reads = reads
        self._process = process
        """Identifies the process in `Reads`."""

    def handlers(self, *subjects: object) -> dict[type[Request[Any]], Handler]:
        """Return the handlers of these objects, wrapped in the checks that their requests need."""
        return {
            kind: self._guarded(kind.log_in, self._counted(handle) if kind.is_read else handle)
            for subject in subjects
            for kind, handle in marked(subject)
        }

    def _guarded(self, log_in: LogIn, handle: Bound) -> Handler:
        if log_in is LogIn.NONE:
            return lambda call: handle(_NOBODY, call.request, call)

        def handler(call: Call[Any]) -> None:
            shown = call.caller
            if isinstance(shown, Admitted):
                groups = frozenset(shown.groups)
                caller = Credentials("", shown.username, None, shown.address, groups=groups, is_accepted=True)
                handle(caller, call.request, call)
                return
            assert shown is not None
            given = credentials_of(shown)

            def decided(verdict: Accept | Refuse) -> None:
                if isinstance(verdict, Refuse) and not (given.silent and log_in is LogIn.OPTIONAL):
                    call.refuse(refused_log_in(verdict))
                    return
                caller = Credentials("", None, None, given.address, given.certificate)
                if isinstance(verdict, Accept):
                    caller.become(verdict)
                call.attempt(lambda: handle(caller, call.request, call))

            self.identity.admit(given, decided)

        return handler

    def _counted(self, handle: Bound) -> Bound:
        """Count a read for its user's quota until the child reports its end."""

        def counted(caller: Credentials, request: Request[Any], call: Call[Any]) -> None:
            refusal = self._reads.begin(self._process, call.number, caller)
            if refusal:
                raise Problem(429, refusal, READ_RETRY)
            call.refused = lambda: self._reads.end(self._process, call.number)
            handle(caller, request, call)

        return counted


def credentials_of(given: Given) -> Credentials:
    """Convert the credentials of a client."""
    password = None if given.password is None else given.password.encode()
    return Credentials("", given.username, password, given.address, given.certificate)


def refused_log_in(verdict: Refuse) -> Problem:
    """Return the Problem for a refused log-in."""
    status = _STATUS.get(verdict.code, 401)
    return Problem(status, verdict.reason or "not authorized", verdict.seconds)

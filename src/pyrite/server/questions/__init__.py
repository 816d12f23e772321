"""What the HTTP process asks of the broker, answered on the event loop: a little work at a time.

Every question says who asks; the same access rules decide on it as on every protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyrite.broker.access import (
    CONNECTION_RATE_EXCEEDED,
    SERVER_BUSY,
    UNSPECIFIED,
    Accept,
    Credentials,
    Refuse,
)
from pyrite.broker.core import Broker
from pyrite.server.child import Answer, Question, credentials_in
from pyrite.server.listeners import Listener
from pyrite.server.questions.about import About
from pyrite.server.questions.clients import Clients
from pyrite.server.questions.figures import Log
from pyrite.server.questions.identity import Identity
from pyrite.server.questions.pages import PageTurns
from pyrite.server.questions.problem import Handler, Later, Message, Part, Problem, Reply, safely
from pyrite.server.questions.publishing import Publishing
from pyrite.server.questions.pulling import Pulling
from pyrite.server.questions.quotas import QuotaUsage
from pyrite.server.questions.topics import Topics
from pyrite.server.reads import Reads

__all__ = ["Later", "Questions"]

_STATUS = {SERVER_BUSY: 503, CONNECTION_RATE_EXCEEDED: 429, UNSPECIFIED: 500}
"""HTTP's words for why someone is not let in; 401 for all others."""


RETRY_READ = 1.0
"""Seconds after which a read that the quota refused may be tried again."""


class Questions:
    """All questions of one HTTP process."""

    def __init__(
        self,
        broker: Broker,
        listening: Callable[[], Sequence[Listener]],
        later: Later,
        tls: bool,
        reads: Reads,
    ) -> None:
        self._broker = broker
        self._reads = reads
        self._identity = Identity(broker)
        about = self._about = About(broker, listening, tls)
        turns = PageTurns(broker)
        clients, topics = Clients(broker, turns), Topics(broker, turns)
        quotas = QuotaUsage(broker, turns)
        log, pulling = Log(broker, about), Pulling(broker, later)
        self._pulling = pulling
        self.known: Mapping[str, Question] = {
            "health": _open(about.health),
            "ready": _open(about.ready),
            "broker": self._for(about.broker, all_may_ask=True),
            "clients": self._for(clients.page),
            "client": self._for(clients.one),
            "disconnect": self._for(clients.disconnect),
            "topics": self._for(topics.page),
            "topic": self._for(topics.one),
            "tree": self._for(topics.level),
            "create": self._for(topics.create),
            "delete": self._for(topics.delete),
            "enter": self._for(self._enter),
            "publish": self._for(Publishing(broker).publish),
            "pull": self._for(self._counted(pulling.pull)),
            "acknowledge": self._for(pulling.acknowledge),
            "quotas": self._for(quotas.page),
            "streams": self._for(log.streams),
            "read": self._for(self._counted(log.read)),
            "figures": self._for(log.figures),
            "figures here": _open(log.all_figures),
        }

    def forget(self) -> None:
        """Have everyone checked again who asks: users may have changed."""
        self._identity.forget()
        self._about.reloads += 1

    def left(self, number: int) -> None:
        """Hear that no one waits any longer for the answer to a question."""
        self._pulling.left(number)
        self.ended(number)

    def ended(self, read: int) -> None:
        """Hear that a read, known by the number of its question, is over."""
        self._reads.end(self, read)

    def gone(self) -> None:
        """Hear that the process has ended."""
        self._pulling.gone()
        self._reads.end_all(self)

    def _enter(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Say whether a request's body is worth reading: whether its sender may do such a thing anywhere."""
        access, action = self._broker.access, message["action"]
        if access.checks_topics and not access.may_within(action, who, "#"):
            raise Problem(403, f"not authorized: {action}")
        reply(who.asker.user)

    def _counted(self, handle: Handler) -> Handler:
        """Have a read answered if its user has not too many under way; the process says when it is over."""

        def counted(who: Credentials, message: Message, reply: Reply) -> None:
            number = message["number"]
            refusal = self._reads.begin(self, number, who)
            if refusal:
                raise Problem(429, refusal, RETRY_READ)

            def told(found: Any) -> None:
                if isinstance(found, Problem):
                    self._reads.end(self, number)
                reply(found)

            safely(lambda: handle(who, message, told), told)

        return counted

    def _for(self, handle: Handler, all_may_ask: bool = False) -> Question:
        """Have a question answered to who may come in; with `all_may_ask`, also to who gives no name."""

        def question(message: Message, answer: Answer) -> None:
            given = credentials_in(message["who"])

            def decided(verdict: Accept | Refuse) -> None:
                if isinstance(verdict, Refuse) and not (given.silent and all_may_ask):
                    status = _STATUS.get(verdict.code, 401)
                    answer(status=status, detail=verdict.reason or "not authorized", after=verdict.seconds)
                    return
                reply = _reply(answer)
                who = Credentials("", None, None, given.address, given.certificate)
                if isinstance(verdict, Accept):
                    who.become(verdict)
                safely(lambda: handle(who, message, reply), reply)

            self._identity.admit(given, decided)

        return question


def _open(handle: Callable[[Message, Reply], None]) -> Question:
    """Have a question answered to anyone."""
    return lambda message, answer: handle(message, _reply(answer))


def _reply(answer: Answer) -> Reply:
    def reply(found: Any) -> None:
        if isinstance(found, Problem):
            answer(status=found.status, detail=str(found), after=found.after)
        elif isinstance(found, Part):
            answer(part=found.entries, attached=found.attached)
        else:
            answer(found=found)

    return reply

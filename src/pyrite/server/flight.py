"""The broker's side of its Flight process: what that is to know, and what it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyrite.broker.access import Accept, Credentials, Refuse
from pyrite.broker.core import Broker
from pyrite.log.sinks import Sinks
from pyrite.server.child import (
    Answer,
    Child,
    Message,
    Question,
    credentials_in,
    log_settings,
    tls_settings,
)
from pyrite.server.config import Config
from pyrite.server.listeners import Listener
from pyrite.server.questions.identity import Identity


class FlightProcess(Child):
    """One Flight listener."""

    name = "Flight"
    module = "pyrite.flight"
    sorry = {"refused": "internal error", "committed": False, "wrong": "internal error"}

    def __init__(
        self,
        config: Config,
        listener: Listener,
        broker: Broker,
        sinks: Sinks,
        at_work: Callable[[Callable[[], object]], None],
    ) -> None:
        super().__init__(listener, at_work)
        self._config = config
        self._broker = broker
        self._sinks = sinks
        self._identity = Identity(broker)

    def settings(self) -> Message:
        """Return what the process is to know."""
        return {
            "data": str(self._config.data),
            "host": self.listener.host,
            "port": self.listener.port,
            "logging": log_settings(self._config),
            "tls": tls_settings(self._config.tls) if self.listener.tls else None,
        }

    def questions(self) -> Mapping[str, Question]:
        """Return what the process may ask."""
        return {"authenticate": self._authenticate, "read": self._may_read, "commit": self._commit}

    def renew(self) -> None:
        """Have everyone checked again who calls."""
        self._identity.forget()
        super().renew()

    def _authenticate(self, message: Message, answer: Answer) -> None:
        def decided(verdict: Accept | Refuse) -> None:
            if isinstance(verdict, Refuse):
                answer(refused=verdict.reason or "not authorized")
            else:
                answer(username=verdict.username)

        self._identity.admit(credentials_in(message), decided)

    def _may_read(self, message: Message, answer: Answer) -> None:
        access = self._broker.access
        who = Credentials("", message["username"], None, "flight")
        for topic in message["topics"]:
            if access.checks_topics and not access.may_pull(who, topic):
                answer(refused=f"not authorized for {topic!r}")
                return
        answer()

    def _commit(self, message: Message, answer: Answer) -> None:
        access = self._broker.access
        who = Credentials("", message["username"], None, "flight")

        def may_publish(topic: str) -> bool:
            return not access.checks_topics or access.may_publish(who, topic)

        def done(committed: bool, wrong: str) -> None:
            answer(committed=committed, wrong=wrong)

        self._sinks.commit(message["sink"], message["batch"], message["parts"], may_publish, done)

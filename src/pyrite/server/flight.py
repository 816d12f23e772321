"""The broker's side of its Flight process: what that is to know, and what it is answered."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pyrite.broker.access import SERVER_BUSY, Accept, Credentials, Refuse
from pyrite.broker.core import Broker
from pyrite.ipc.channel import Message
from pyrite.server.child import (
    Answer,
    Child,
    Question,
    credentials_in,
    log_settings,
    tls_settings,
)
from pyrite.server.config import Config
from pyrite.server.listeners import Listener
from pyrite.server.questions.identity import Identity
from pyrite.server.reads import Reads
from pyrite.sinks.sinks import Sinks


class FlightProcess(Child):
    """One Flight listener."""

    name = "Flight"
    module = "pyrite.flight"
    sorry = {"refused": "internal error", "busy": False, "committed": False, "wrong": "internal error"}

    def __init__(
        self,
        config: Config,
        listener: Listener,
        broker: Broker,
        sinks: Sinks,
        at_work: Callable[[Callable[[], object]], None],
        reads: Reads,
    ) -> None:
        super().__init__(listener, broker, at_work)
        self._config = config
        self._sinks = sinks
        self._identity = Identity(broker)
        self._reads = reads

    def settings(self) -> Message:
        """Return what the process is to know."""
        return {
            "data": str(self._config.data),
            "host": self.listener.host,
            "port": self.listener.port,
            "logging": log_settings(self._config),
            "tls": tls_settings(self._config.tls) if self.listener.tls else None,
            "max_connections": self._config.limits.max_connections,
            "connect_timeout": self._config.limits.connect_timeout,
        }

    def questions(self) -> Mapping[str, Question]:
        """Return what the process may ask."""
        return {
            "authenticate": self._authenticate,
            "read": self._read,
            "may read": self._may_read,
            "may": self._may,
            "streams": self._streams,
            "stage": self._stage,
            "room": self._room,
            "commit": self._commit,
            "abort": self._abort,
        }

    def renew(self, certificates_changed: bool, trust_changed: bool) -> None:
        """Have everyone checked again who calls, or is reading."""
        self._identity.forget()
        self.say(changed=True)
        super().renew(certificates_changed, trust_changed)

    def _authenticate(self, message: Message, answer: Answer) -> None:
        def decided(verdict: Accept | Refuse) -> None:
            if isinstance(verdict, Refuse):
                busy = verdict.code == SERVER_BUSY
                answer(refused=verdict.reason or "not authorized", busy=busy)
            else:
                answer(who=[verdict.username, sorted(verdict.groups)], seconds=verdict.seconds)

        self._identity.admit(credentials_in(message), decided)

    def ended(self, read: int) -> None:
        """Hear that a read of the log is over."""
        self._reads.end(self, read)

    def gone(self) -> None:
        """Hear that the process has ended."""
        self._reads.end_all(self)

    def _read(self, message: Message, answer: Answer) -> None:
        """Let a read begin; the process says when it is over."""
        number = message["number"]
        refusal = self._reads.begin(self, number, _who(message))
        if refusal:
            answer(busy=refusal)
            return

        def told(**found: Any) -> None:
            if found:
                self._reads.end(self, number)
            answer(**found)

        self._may_read(message, told)

    def _may(self, message: Message, answer: Answer) -> None:
        """Say whether the caller may do one of several things on any topic, before anything is decoded."""
        access, who, actions = self._broker.access, _who(message), message["actions"]
        if access.checks_topics and not any(access.may_within(action, who, "#") for action in actions):
            answer(refused=f"not authorized: {' or '.join(actions)}")
        else:
            answer()

    def _streams(self, message: Message, answer: Answer) -> None:
        """Say from which streams the caller may read something."""
        access, who = self._broker.access, _who(message)
        streams = self._broker.journal.streams
        answer(
            streams=[
                one.name
                for one in streams
                if not access.checks_topics
                or any(access.may_within("pull", who, topic.decode()) for topic in one.filters)
            ]
        )

    def _may_read(self, message: Message, answer: Answer) -> None:
        access = self._broker.access
        who = _who(message)
        for topic in message["topics"]:
            if access.checks_topics and not access.may_pull(who, topic):
                answer(refused=f"not authorized for {topic!r}")
                return
        answer()

    def _name(self, message: Message) -> str | None:
        """Return the name under which the caller's sinks are kept apart; None where names say nothing."""
        return (_who(message).username or "") if self._broker.access.checks_topics else None

    def _is_refused(self, message: Message, answer: Answer) -> bool:
        """Refuse a user a sink of another user, or one that it has staged nothing for; tell whether it did.

        A sink belongs to the user who first committed to it.
        """
        sink, name = message["sink"], self._name(message)
        owner = self._sinks.owner(sink)
        if name is None or owner == name:
            return False
        if owner is not None:
            answer(refused=f"sink {sink!r} is another user's: choose another name")
        elif self._sinks.has_staged(sink, name):
            return False
        else:
            answer(wrong=f"nothing was staged for sink {sink!r}")
        return True

    def _stage(self, message: Message, answer: Answer) -> None:
        sink, topic, name = message["sink"], message["topic"], self._name(message)
        if topic is not None and not self._may_publish(message, topic):
            answer(refused=f"topic {topic!r}: not authorized")
        elif (topic is not None and self._sinks.owner(sink) is None) or not self._is_refused(message, answer):
            part = _own(name, message["part"])
            self._sinks.stage(sink, part, name, lambda wrong: answer(wrong=wrong, part=part))

    def _room(self, message: Message, answer: Answer) -> None:
        if not self._is_refused(message, answer):
            self._sinks.room(message["sink"], self._name(message), partial(_tell, answer))

    def _abort(self, message: Message, answer: Answer) -> None:
        sink, parts, name = message["sink"], message["parts"], self._name(message)
        if parts is not None:
            parts = [_own(name, part) for part in parts]
        owner = self._sinks.owner(sink)
        if name is not None and owner is None and not self._sinks.has_staged(sink, name):
            answer(wrong="")  # there is nothing
        elif (
            parts is None and owner not in (None, name) and self._broker.access.may_admin(_who(message), "#")
        ):
            self._sinks.delete(sink, partial(_tell, answer))
        elif not self._is_refused(message, answer):
            self._sinks.abort(sink, parts, partial(_tell, answer), name)

    def _may_publish(self, message: Message, topic: str) -> bool:
        access = self._broker.access
        return not access.checks_topics or access.may_publish(_who(message), topic)

    def _commit(self, message: Message, answer: Answer) -> None:
        def done(committed: bool, wrong: str) -> None:
            answer(committed=committed, wrong=wrong)

        if not self._is_refused(message, answer):
            may_publish, name = partial(self._may_publish, message), self._name(message)
            self._sinks.commit(
                message["sink"],
                message["batch"],
                [_own(name, part) for part in message["parts"]],
                may_publish,
                done,
                name,
            )


def _own(user: str | None, part: str) -> str:
    """Return what a user's part is called in the data folder: no user writes over the part of another."""
    if user is None:
        return part
    return f"{hashlib.blake2b(user.encode(), digest_size=8).hexdigest()}-{part}"


def _tell(answer: Answer, wrong: str) -> None:
    answer(wrong=wrong)


def _who(message: Message) -> Credentials:
    """Return who makes a call, as the process was told when they came in."""
    name, groups = message["who"]
    return Credentials("", name, None, message.get("address", "flight"), groups=frozenset(groups))

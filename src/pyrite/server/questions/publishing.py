"""Publishing over HTTP: as any client does, and answered when the message is safe."""

from __future__ import annotations

import base64
from functools import partial

from pyrite.broker.access import Credentials
from pyrite.broker.accounts import Account
from pyrite.broker.core import SYSTEM, Broker
from pyrite.broker.journal import Fault
from pyrite.broker.message import Batch, Properties
from pyrite.server.questions.problem import Message, Problem, Reply, refused, safely
from pyrite.server.questions.topics import checked_topic


class _Turn:
    """A publish that waits until there is room in the journal, or for the deliveries that it causes."""

    def __init__(self, publishing: Publishing, account: Account, batch: Batch, reply: Reply) -> None:
        self._publish = partial(publishing.publish_when_there_is_room, account, batch, reply)
        self._reply = reply

    def go_on(self) -> None:
        """Try again."""
        safely(self._publish, self._reply)


class Publishing:
    """Takes messages."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def publish(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Publish a message; tell where in the log it is."""
        broker, asked = self._broker, message["message"]
        topic = self._checked(who, asked)
        payload = message.get("attached", b"")
        account = broker.quotas.account_of(who)
        if account.meter is not None and account.is_spent:
            broker.figures.quota_refused += 1
            raise Problem(
                429,
                f"quota exceeded: message rate or byte rate of {account.label}: try again later",
                account.seconds_to_wait,
            )
        figures = broker.figures
        figures.publish_received += 1
        figures.publish_bytes_received += len(payload)
        expiry = asked["message_expiry"]
        batch = Batch(
            topic,
            payload,
            asked["qos"],
            asked["retain"],
            _properties(asked),
            None if expiry is None else broker.now + expiry,
        )
        if batch.retain:
            batch = batch.owned_by(account)
            fault = broker.retain_fault(batch)
            if fault is not None:
                broker.figures.quota_refused += fault.quota
                raise Problem(_status(fault), fault.text)
        if account.meter is not None:
            account.charge(1, len(payload))
        self.publish_when_there_is_room(account, batch, reply)

    def publish_when_there_is_room(self, account: Account, batch: Batch, reply: Reply) -> None:
        """Publish, or wait until there is room."""
        done = partial(self._done, batch, reply)
        if self._broker.journal.full:
            self._broker.choke(_Turn(self, account, batch, reply))
        elif self._broker.fan_outs.has_to_wait(batch.topic, 1):
            self._broker.fan_outs.wait(_Turn(self, account, batch, reply))
        elif account.meter is None:
            self._broker.publish(batch, done=done)
        else:
            self._broker.publish_for(account, batch, done=done)

    def _done(self, batch: Batch, reply: Reply, _: bool, fault: Fault | None) -> None:
        stream = batch.stream
        if fault is not None:
            reply(Problem(_status(fault), fault.text))
        elif stream is None:
            reply({"offset": None, "stream": None})
        else:
            reply({"offset": batch.offset, "stream": stream.name})

    def _checked(self, who: Credentials, asked: Message) -> bytes:
        """Return the topic, if the message may be published on it."""
        broker, access, name = self._broker, self._broker.access, asked["topic"]
        topic = checked_topic(broker, name)
        if topic.startswith(SYSTEM):
            raise Problem(403, "not authorized: no one publishes on $SYS but the broker")
        if access.checks_topics and not access.may_publish(who, name):
            raise refused("publish", name)
        refusal = broker.catalog.refusal(topic)
        if refusal:
            raise Problem(409, refusal)
        return topic


def _status(fault: Fault) -> int:
    """Return HTTP's status for what could not be kept."""
    if fault.quota:
        return 403
    return 507 if fault.full else 503


def _properties(asked: Message) -> Properties | None:
    correlation = asked["correlation_data_base64"]
    values = (
        asked["payload_format"],
        asked["message_expiry"],
        asked["content_type"],
        asked["response_topic"],
        None if correlation is None else base64.b64decode(correlation),
        tuple((key, value) for key, value in asked["user_properties"]),
    )
    return Properties(*values) if any(one is not None and one != () for one in values) else None

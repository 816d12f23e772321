"""Requests that publish; answered once the message is durable."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from msgspec import UNSET, UnsetType

from pyrite.broker.access import Credentials
from pyrite.broker.accounts import Account
from pyrite.broker.core import Broker
from pyrite.broker.journal import Fault
from pyrite.broker.message import Batch, Properties
from pyrite.ipc.api.publishing import NewMessage, Published, PublishMessage
from pyrite.ipc.problem import Problem
from pyrite.ipc.server import Call
from pyrite.server.api.checks import check, checked_topic
from pyrite.server.gate import answers

T = TypeVar("T")


class _Turn:
    """A publish request that waits for room in the journal."""

    def __init__(self, publish: Callable[[], object], call: Call[Published]) -> None:
        self._publish = publish
        self._call = call

    def go_on(self) -> None:
        """Try again."""
        self._call.attempt(self._publish)


class PublishRequests:
    """Answers requests that publish a message."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @answers(PublishMessage)
    def publish(self, caller: Credentials, request: PublishMessage, call: Call[Published]) -> None:
        """Publish a message; return its stream and offset."""
        broker, message = self._broker, request.body
        topic = self._checked(caller, message.topic, message.qos)
        payload = message.payload_base64
        assert payload is not UNSET
        account = broker.quotas.account_of(caller)
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
        expiry = _given(message.message_expiry)
        batch = Batch(
            topic,
            payload,
            message.qos,
            message.retain,
            _properties(message),
            None if expiry is None else broker.now + expiry,
        )
        if batch.retain:
            batch = batch.owned_by(account)
            fault = broker.retained.fault(batch)
            if fault is not None:
                broker.figures.quota_refused += fault.quota
                raise Problem(_status(fault), fault.text)
        if account.meter is not None:
            account.charge(1, len(payload))
        self._publish_when_there_is_room(account, batch, call)

    def _publish_when_there_is_room(self, account: Account, batch: Batch, call: Call[Published]) -> None:
        """Publish once the journal has room and few deliveries are pending."""
        done = partial(_done, batch, call)
        if self._broker.journal.full:
            publish = partial(self._publish_when_there_is_room, account, batch, call)
            self._broker.turns.wait_for_journal(_Turn(publish, call))
        elif self._broker.fan_outs.has_to_wait(batch.topic, 1):
            publish = partial(self._publish_when_there_is_room, account, batch, call)
            self._broker.fan_outs.wait(_Turn(publish, call))
        elif account.meter is None:
            self._broker.publishing.publish(batch, done=done)
        else:
            self._broker.publishing.publish_for(account, batch, done=done)

    def _checked(self, caller: Credentials, name: str, qos: int) -> bytes:
        """Return the topic, if the caller may publish on it with this QoS."""
        topic = checked_topic(self._broker, name)
        check(self._broker.policy.refuse_publish(caller, topic, qos))
        return topic


def _done(batch: Batch, call: Call[Published], _: bool, fault: Fault | None) -> None:
    if fault is not None:
        call.refuse(Problem(_status(fault), fault.text))
    elif batch.stream is None:
        call.reply(Published(None, None))
    else:
        call.reply(Published(batch.offset, batch.stream.name))


def _status(fault: Fault) -> int:
    """Return the HTTP status for a message that could not be stored."""
    if fault.quota:
        return 403
    return 507 if fault.full else 503


def _given(value: T | UnsetType) -> T | None:
    return None if value is UNSET else value


def _properties(message: NewMessage) -> Properties | None:
    pairs = _given(message.user_properties) or ()
    values = (
        _given(message.payload_format),
        _given(message.message_expiry),
        _given(message.content_type),
        _given(message.response_topic),
        _given(message.correlation_data_base64),
        tuple(pairs),
    )
    return Properties(*values) if any(one is not None and one != () for one in values) else None

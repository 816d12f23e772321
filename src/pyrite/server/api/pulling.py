"""Requests of consumers (broker/consumers.py): pull and acknowledge."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

from msgspec import UNSET

from pyrite.broker import consumers
from pyrite.broker.access import Credentials
from pyrite.broker.consumers import (
    ACKNOWLEDGE_WITHIN,
    Consumer,
    ConsumerError,
    NotAllowed,
    QuotaExceeded,
    TooManyConsumers,
    Unavailable,
)
from pyrite.broker.core import Broker
from pyrite.broker.message import Batch
from pyrite.broker.pending import Place
from pyrite.ipc.api.log import Acknowledge, Pull, PulledMessages, StoredMessage
from pyrite.ipc.problem import Problem
from pyrite.ipc.server import Call
from pyrite.server.api.checks import check, checked_filter
from pyrite.server.api.pages import TURN_BYTES
from pyrite.server.gate import answers
from pyrite.storage.positions import Earliest

MAX_PULL_BYTES = 16 * 1024 * 1024
"""Maximum bytes of payloads and topics in an answer, even if it has fewer messages than requested."""
MAX_BACKLOG = 64 * 1024 * 1024
"""Bytes waiting to be sent to the HTTP process at which every answer ends."""
MIN_FETCH_INTERVAL = 0.1
"""Minimum seconds between two fetches of a waiting pull, which messages on other topics may wake."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> object:
        """Cancel the call."""


Later = Callable[[float, Callable[[], object]], Timer | None]
"""Schedules a call after some seconds."""


class PullRequests:
    """Answers requests of consumers, for one HTTP process."""

    def __init__(self, broker: Broker, later: Later) -> None:
        self.broker = broker
        self.later = later
        self.waiting: dict[int, _WaitingPull] = {}
        """Pulls waiting for a message, by number of the call."""
        self._for_growth: dict[int, _WaitingPull] = {}
        """The waiting pulls to wake when the log grows."""
        self._listens = False

    def cancel(self, number: int) -> None:
        """Cancel a pull that no client waits for any more: a fetched message would be lost."""
        pull = self.waiting.pop(number, None)
        if pull is not None:
            pull.stop_timer()
            self._for_growth.pop(number, None)

    def cancel_all(self) -> None:
        """Cancel all pulls, because the HTTP process has ended."""
        for number in list(self.waiting):
            self.cancel(number)

    def wake_on_growth(self, number: int, pull: _WaitingPull) -> None:
        """Wake a pull when a message is added to the log."""
        self._for_growth[number] = pull
        if not self._listens:
            self._listens = True
            self.broker.journal.when_grown(self._grown)

    def _grown(self) -> None:
        self._listens = False
        pulls, self._for_growth = self._for_growth, {}
        for pull in pulls.values():  # each in its own turn, because there may be many
            self.broker.turns.soon(pull.look)

    @answers(Pull)
    def pull(self, caller: Credentials, request: Pull, call: Call[PulledMessages]) -> None:
        """Fetch messages of a consumer, or wait for one; a request with a filter creates the consumer."""
        pull = _WaitingPull(self, caller, request, call)
        wanted = request.body.filter
        if wanted is UNSET:
            self.find(caller, request.name)
            pull.fetch()
            return
        topic_filter = checked_filter(self.broker, wanted)
        check(self.broker.policy.refuse_consumer(caller, topic_filter))
        begin = partial(call.attempt, pull.fetch)
        try:
            consumers.create(
                self.broker, caller, request.name, topic_filter, Earliest(), ACKNOWLEDGE_WITHIN, begin
            )
        except ConsumerError as error:
            status = {TooManyConsumers: 507, QuotaExceeded: 403, Unavailable: 503}.get(type(error), 409)
            raise Problem(status, str(error)) from None

    @answers(Acknowledge)
    def acknowledge(self, caller: Credentials, request: Acknowledge, call: Call[None]) -> None:
        """Acknowledge processed messages."""
        consumer = self.find(caller, request.name)
        done = request.body
        if done.filter is not UNSET and done.filter.encode("utf-8", "replace") != consumer.topic_filter:
            known = consumer.topic_filter.decode()
            raise Problem(409, f"consumer {consumer.name!r} already exists with filter {known!r}")
        streams = {one.name: one for one in self.broker.journal.streams}
        stream = streams.get(done.stream)
        if stream is None:
            raise Problem(404, f"there is no stream {done.stream!r}")
        offsets = [done.offset] if done.offset is not UNSET else done.offsets
        assert offsets is not UNSET
        consumer.acknowledge([Place(stream, offset) for offset in offsets], lambda _: call.reply(None))

    def find(self, caller: Credentials, name: str) -> Consumer:
        """Return a consumer; raise Problem if it does not exist or the caller may not pull from it."""
        try:
            return consumers.find(self.broker, caller, name)
        except Unavailable as refusal:
            raise Problem(503, str(refusal)) from None
        except NotAllowed as refusal:
            raise Problem(403, str(refusal)) from None
        except ConsumerError:
            raise Problem(404, f"there is no consumer {name!r}: pull with a filter to create it") from None


class _WaitingPull:
    """One pull: fetches messages, and waits for one until its deadline."""

    def __init__(
        self, pulls: PullRequests, caller: Credentials, request: Pull, call: Call[PulledMessages]
    ) -> None:
        self._pulls = pulls
        self._broker = pulls.broker
        self._caller = caller
        self._request = request
        self._call = call
        self._until = self._broker.clock() + request.body.wait
        self._no_fetch_before = 0.0
        self._timer: Timer | None = None
        self._messages: list[StoredMessage] = []
        self._bytes = 0
        """Bytes of `_messages`."""
        self._sent_bytes = 0
        """Bytes in earlier parts of the answer."""

    def fetch(self) -> None:
        """Fetch the messages that are available."""
        name = self._request.name
        if name not in self._broker.consumers:
            self._call.reply(PulledMessages([]))  # the consumer was deleted
            return
        if not self._broker.policy.is_welcome(self._caller):
            raise Problem(401, "log in again: the users have changed")
        consumer = self._pulls.find(self._caller, name)
        asker = self._caller.asker._replace(client=name)
        consumer.fetch(self._request.body.max, self._send_fetched, self._fetched, asker, self._is_full)

    def _send_fetched(self, place: Place, batch: Batch) -> None:
        self._messages.append(_message(place, batch))
        self._bytes += len(batch.topic) + len(batch.data)
        if self._bytes >= TURN_BYTES:
            self._call.send_part(PulledMessages(self._messages))
            self._sent_bytes += self._bytes
            self._messages, self._bytes = [], 0

    def _is_full(self) -> bool:
        return self._sent_bytes + self._bytes >= MAX_PULL_BYTES or self._call.backlog() >= MAX_BACKLOG

    def _fetched(self, count: int) -> None:
        consumer = self._broker.consumers.get(self._request.name)
        if count or consumer is None or self._broker.clock() >= self._until:
            self._call.reply(PulledMessages(self._messages))
        else:
            self._wait(consumer)

    def _wait(self, consumer: Consumer) -> None:
        """Wait for a message, for the next redelivery, or for the deadline."""
        number = self._call.number
        self._pulls.waiting[number] = self
        seconds = self._until - self._broker.clock()
        due = consumer.pending.next_due()
        if due is not None:
            seconds = min(seconds, max(due - self._broker.now, MIN_FETCH_INTERVAL))
        self._timer = self._pulls.later(seconds, self._fetch_again)
        self.look()

    def look(self) -> None:
        """Fetch if the log has new messages, otherwise wait for them."""
        number = self._call.number
        if self._pulls.waiting.get(number) is not self:
            return
        consumer = self._broker.consumers.get(self._request.name)
        streams = self._broker.journal.streams
        if consumer is None or all(consumer.positions.get(one, 0) >= one.routed for one in streams):
            self._pulls.wake_on_growth(number, self)
            return
        pause = self._no_fetch_before - self._broker.clock()
        if pause <= 0:
            self._fetch_again()
        elif self._broker.clock() + pause < self._until:
            self._pulls.later(pause, self.look)

    def _fetch_again(self) -> None:
        if self._pulls.waiting.get(self._call.number) is self:
            self._pulls.cancel(self._call.number)
            self._no_fetch_before = self._broker.clock() + MIN_FETCH_INTERVAL
            self._call.attempt(self.fetch)

    def stop_timer(self) -> None:
        """Cancel the deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _message(place: Place, batch: Batch) -> StoredMessage:
    """Return a message of the log as a structure of the API."""
    message = StoredMessage(
        stream=place.stream.name,
        offset=place.offset,
        timestamp=_EPOCH + timedelta(microseconds=batch.timestamp),
        topic=batch.topic.decode(),
        payload_base64=batch.payload(),
        qos=batch.qos,
        retain=batch.retain,
    )
    if batch.origin is not None:
        message.client_id = batch.origin
    properties = batch.properties
    if properties is not None:
        for name in ("payload_format", "message_expiry", "content_type", "response_topic"):
            value = getattr(properties, name)
            if value is not None:
                setattr(message, name, value)
        if properties.correlation_data is not None:
            message.correlation_data_base64 = properties.correlation_data
        if properties.user_properties:
            message.user_properties = list(properties.user_properties)
    return message

"""Requests: messages on topics under `$pyrite/`, answered on their response topic.

Consumers, `$pyrite/consumers/NAME/ACTION`:

    create   {"filter": "sensors/#", "from": "earliest", "within": 30}    create a consumer, unless it exists
    fetch    {"count": 100}                                               fetch up to COUNT messages
    ack      ["default:17", "default:18"]                                 acknowledge messages
    delete                                                                delete the consumer

Topics, `$pyrite/topics/ACTION`, where the payload is a topic, or a filter for `list`:

    create   weather/temp                                                 create a topic
    delete   weather/temp                                                 delete it and its retained message
    list     weather/#                                                    list topics

A request is an MQTT 5 PUBLISH with a response topic. The broker answers the same client, on that topic, with
the QoS and the correlation data of the request. Each fetched message is sent with its topic and its place as
user properties (`pyrite-topic`, `pyrite-place`); the client acknowledges places. Each listed topic is sent as
a message whose payload is the retained message, if there is one (`pyrite-kept`). The last message of an
answer is empty and has the count (`pyrite-count`) or the error (`pyrite-error`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyrite.broker import consumers
from pyrite.broker.consumers import ACKNOWLEDGE_WITHIN, MAX_FETCH, Consumer, ConsumerError
from pyrite.broker.message import Batch, Properties
from pyrite.broker.pending import Place
from pyrite.broker.policy import Refusal
from pyrite.broker.subscriptions import Subscription
from pyrite.errors import PyriteError
from pyrite.storage.positions import parse_position
from pyrite.topics.filters import InvalidTopic, check_filter, check_topic

if TYPE_CHECKING:
    from pyrite.protocols.mqtt.connection import Connection

REQUESTS = b"$pyrite/"
MAX_REQUEST = 64 * 1024
"""Bytes of a request's payload, which is decoded without interruption."""
MAX_PLACES_IN_STEP = 64
"""Places parsed in one step."""
MAX_DIGITS = 19
"""Digits of an offset."""
EXPECTED = (
    "expected $pyrite/consumers/NAME/ and create, fetch, ack or delete, "
    "or $pyrite/topics/ and create, delete or list"
)


class RequestRefused(PyriteError):
    """A request is refused; the text says why."""


class Request:
    """One request and its answer."""

    def __init__(self, connection: Connection, qos: int, properties: Properties | None) -> None:
        self._connection = connection
        self._session = connection.session
        self._qos = qos
        self._topic = ""
        self._correlation: bytes | None = None
        if properties is not None:
            self._topic = properties.response_topic or ""
            self._correlation = properties.correlation_data

    def handle(self, topic: bytes, payload: bytes) -> None:
        try:
            if len(payload) > MAX_REQUEST:
                raise RequestRefused(f"the request exceeds {MAX_REQUEST} bytes")
            kind, _, rest = topic[len(REQUESTS) :].decode().partition("/")
            if kind == "consumers":
                self._about_consumer(rest, payload)
            elif kind == "topics":
                self._about_topics(rest, payload)
            else:
                raise RequestRefused(EXPECTED)
        except (RequestRefused, ConsumerError, InvalidTopic) as error:
            self._end(("pyrite-error", str(error)))

    def _about_consumer(self, rest: str, payload: bytes) -> None:
        name, slash, action = rest.rpartition("/")
        if not slash or not name or action not in ("create", "fetch", "ack", "delete"):
            raise RequestRefused(EXPECTED)
        broker = self._connection.broker
        if not broker.journal.streams:
            raise RequestRefused("this broker keeps no log to fetch messages from")
        credentials = self._connection.credentials  # check rights before decoding the payload
        if action == "create":
            _check(broker.policy.refuse_everywhere(credentials, ["pull"]))
            self._create(name, _decoded(payload))
            return
        consumer = consumers.find(broker, credentials, name)
        if action == "delete":
            consumers.delete(consumer, self._done)
        elif action == "fetch":
            self._fetch(consumer, _decoded(payload))
        else:
            self._in_steps(self._acknowledge(consumer, _decoded(payload)))

    def _in_steps(self, steps: Iterator[None]) -> None:
        """Do the rest of the request in turns, as work of the connection."""
        self._connection.add_work(self._tried(steps))

    def _tried(self, steps: Iterator[None]) -> Iterator[None]:
        try:
            yield from steps
        except RequestRefused as error:
            self._end(("pyrite-error", str(error)))

    def _done(self) -> None:
        self._counted(0)

    def _about_topics(self, action: str, payload: bytes) -> None:
        connection = self._connection
        broker = connection.broker
        try:
            name = payload.decode()
        except UnicodeDecodeError:
            raise RequestRefused("the payload is not a topic: it is not UTF-8") from None
        if action == "list":
            name = name or "#"
            check_filter(name.encode(), broker.limits.max_topic_levels)
            _check(broker.policy.refuse_list(connection.credentials, name.encode()))
            if self._topic:  # else the answer has no topic
                self._in_steps(self._list(name.encode()))
        elif action in ("create", "delete"):
            check_topic(payload, broker.limits.max_topic_levels)
            _check(broker.policy.refuse_admin(connection.credentials, payload))
            change = broker.catalog.create if action == "create" else broker.catalog.delete
            refusal = change(payload)
            if refusal:
                raise RequestRefused(refusal)
            broker.journal.after(self._done)
        else:
            raise RequestRefused(EXPECTED)

    def _list(self, topic_filter: bytes) -> Iterator[None]:
        """Answer with the topics that match a filter, at most one topic per step."""
        count = 0
        for found in self._connection.broker.catalog.each(topic_filter):
            if found is None:
                yield
                continue
            count += 1
            topic, kept = found
            about: tuple[tuple[str, str], ...] = (("pyrite-topic", topic.decode()),)
            if kept is not None:
                about += (("pyrite-kept", "true"),)
            properties = Properties(correlation_data=self._correlation, user_properties=about)
            self._answer(kept or b"", properties)
            yield
        self._counted(count)

    def _create(self, name: str, wishes: Any) -> None:
        broker = self._connection.broker
        there = broker.consumers.get(name)
        default = "#" if there is None else there.topic_filter.decode()
        if not isinstance(wishes, dict) or not isinstance(wishes.get("filter", default), str):
            raise RequestRefused('expected {"filter": a topic filter, ...}')
        try:
            topic_filter = wishes.get("filter", default).encode()
        except UnicodeEncodeError:
            raise RequestRefused("the filter is not UTF-8") from None
        check_filter(topic_filter, broker.limits.max_topic_levels)
        refusal = broker.policy.refuse_consumer(self._connection.credentials, topic_filter)
        if refusal is not None and refusal.is_unauthorized and "filter" not in wishes:
            raise RequestRefused("not authorized: pull the consumer's topics")  # without telling its filter
        _check(refusal)
        within = wishes.get("within", ACKNOWLEDGE_WITHIN)
        if not isinstance(within, int | float) or isinstance(within, bool):
            raise RequestRefused('expected "within" to be a number of seconds')
        try:
            start = parse_position(str(wishes.get("from", "earliest")))
        except ValueError as error:
            raise RequestRefused(str(error)) from None
        consumers.create(broker, self._connection.credentials, name, topic_filter, start, within, self._done)

    def _fetch(self, consumer: Consumer, wishes: Any) -> None:
        count = wishes.get("count", 1) if isinstance(wishes, dict) else wishes
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_FETCH:
            raise RequestRefused(f'expected {{"count": a number from 1 to {MAX_FETCH}}}')
        consumer.fetch(count, self._send_fetched, self._counted, self._connection.credentials.asker)

    def _send_fetched(self, place: Place, batch: Batch) -> None:
        known = batch.properties or Properties()
        about = (("pyrite-topic", batch.topic.decode()), ("pyrite-place", str(place)))
        properties = Properties(
            known.payload_format,
            None,
            known.content_type,
            None,
            self._correlation,
            known.user_properties + about,
        )
        self._answer(batch.payload(), properties)

    def _acknowledge(self, consumer: Consumer, wishes: Any) -> Iterator[None]:
        texts = wishes.get("places") if isinstance(wishes, dict) else wishes
        if not isinstance(texts, list):
            raise RequestRefused('expected a list of places, such as ["default:17"]')
        streams = {stream.name: stream for stream in self._connection.broker.journal.streams}
        places = []
        for first in range(0, len(texts), MAX_PLACES_IN_STEP):
            for text in texts[first : first + MAX_PLACES_IN_STEP]:
                name, _, offset = text.rpartition(":") if isinstance(text, str) else ("", "", "")
                if name not in streams or not offset.isdecimal() or len(offset) > MAX_DIGITS:
                    wrong = repr(text) if isinstance(text, str) and len(text) < 64 else "one of them"
                    raise RequestRefused(
                        f"{wrong} is not a place: expected the pyrite-place of a fetched message"
                    )
                places.append(Place(streams[name], int(offset)))
            yield
        consumer.acknowledge(places, self._counted)

    def _counted(self, count: int) -> None:
        self._end(("pyrite-count", str(count)))

    def _end(self, result: tuple[str, str]) -> None:
        self._answer(b"", Properties(correlation_data=self._correlation, user_properties=(result,)))

    def _answer(self, payload: bytes, properties: Properties) -> None:
        session = self._session
        if self._topic and session is not None and self._connection.session is session:
            topic = self._topic.encode()
            batch = Batch(topic, payload, self._qos, properties=properties)
            target = Subscription(session, topic, self._qos)
            target.is_answer = session.has_answers = True
            session.deliver(batch, target)


def _check(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise RequestRefused(refusal.text)


def _decoded(payload: bytes) -> Any:
    """Return the value of a JSON payload; {} for an empty payload."""
    try:
        return json.loads(payload) if payload else {}
    except ValueError as error:
        raise RequestRefused(f"the payload is not JSON: {error}") from None
    except RecursionError:
        raise RequestRefused("the JSON payload is nested too deeply") from None

"""One client of the line protocol: commands in, broker calls, frames out. No I/O: a listener feeds it.

What came is handled frame by frame, but for Publish: as with MQTT, a run of them that begin alike becomes one
batch, which is one slice of what was read.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyrite.broker import consumers
from pyrite.broker.access import NOT_AUTHORIZED, Accept, Refuse
from pyrite.broker.consumers import ACKNOWLEDGE_WITHIN, MAX_FETCH, Consumer, ConsumerError, NotAllowed
from pyrite.broker.core import SYSTEM, TURN
from pyrite.broker.journal import Fault
from pyrite.broker.link import Transport
from pyrite.broker.message import Batch
from pyrite.broker.pending import Place
from pyrite.broker.positions import Position, parse_position
from pyrite.broker.session import SENT_TOGETHER, Session, WrongAcknowledgement
from pyrite.broker.subscriptions import Subscription
from pyrite.protocols.conversation import Conversation, Term
from pyrite.protocols.line.frames import MAX_LINE, MAX_WORDS, FrameError, Line, error, escape, line, parse
from pyrite.protocols.line.options import LineOptions
from pyrite.protocols.line.ranges import among, merge, within
from pyrite.protocols.runs import MANY, count_alike, words
from pyrite.protocols.states import CLOSED, CONNECTED
from pyrite.topics.filters import InvalidTopic, check_filter, check_topic, split_shared

if TYPE_CHECKING:
    from pyrite.broker.core import Broker

logger = logging.getLogger(__name__)

FIRST_NUMBER = 65_536
"""From here on count the numbers of messages that are not in flight in the session."""
MAX_NUMBERED = 100_000
"""Messages of a connection with such numbers that may wait for their Ack."""
LOOKS_AT_CLOCK = 8
ESCAPED_A_STEP = 8 * 1024
"""Bytes of a retained value that are escaped for a List in one step."""
FORM = 256
"""The wire form (see delivery.py of MQTT for others) of plain messages that were published with `noack`."""
_LF = 10


class Shape(NamedTuple):
    """How a Publish looks: as long as the next begin like it, they need no parsing."""

    prefix: bytes
    """Its line, with its end."""
    size: int
    """Bytes of the whole frame."""
    topic: bytes
    qos: int
    retain: bool
    request: str | None
    """The id that the client gave it."""
    form: int
    """FORM if it needs little change to be a Message, or -1."""


class Pulled(NamedTuple):
    """A message that was given out by Pull."""

    consumer: Consumer
    place: Place


class _LogInDeadline(Term):
    """The end of the time in which a client must have logged in, if it has to."""

    __slots__ = ()
    connection: LineConnection

    def due(self) -> None:
        """End the connection: Ping and Pong alone do not keep it."""
        self.connection.log_in_overdue()


class LineConnection(Conversation):
    """The line protocol for one client, over any transport."""

    __slots__ = (
        "_asked",
        "_due",
        "_due_before",
        "_farewell",
        "_missed",
        "_next_number",
        "_numbered",
        "_pulling",
        "_shape",
        "_under_way",
        "_unkept",
        "_will_send_due",
        "options",
        "peer",
    )

    def __init__(
        self, broker: Broker, options: LineOptions, transport: Transport, address: str, peer: str = ""
    ) -> None:
        super().__init__(broker, transport, address)
        self.options = options
        self.peer = peer or address
        """The client's address and port, to be shown."""
        self._shape: Shape | None = None
        self._asked = False
        """Whether a Ping has not been answered."""
        self._missed = 0
        """Rounds in a row without an answer."""
        self._numbered: dict[int, Pulled | bytes] = {}
        """What waits for an Ack by a number that is not the session's: pulled, or the latest of a topic."""
        self._next_number = FIRST_NUMBER
        self._under_way: dict[bytes, Batch] = {}
        """By topic, of filters that want the latest message only: the one that waits for its Ack."""
        self._due: OrderedDict[bytes, None] = OrderedDict()
        """Topics of such filters whose latest message is to be sent, in this order."""
        self._due_before: deque[bytes] = deque()
        """Topics whose latest message waited when the client came back; they come before the others."""
        self._will_send_due = False
        """Whether another turn comes for the rest of them."""
        self._unkept = 0
        """Answers that wait for the state to be safe; those that come after them wait for them."""
        self._pulling = 0
        """How many Pulls are not answered yet."""
        self._farewell: bytes | None = None
        """What to say last, if the client said that nothing more comes."""
        broker.timers.set(self, broker.now + options.ping_interval)
        self.watched("Connected")
        if not broker.access.lets_everyone_in:
            self.term = _LogInDeadline(self)
            broker.timers.set(self.term, broker.now + broker.limits.connect_timeout)

    # Bytes in

    def feed(self, data: bytes) -> None:
        """Take bytes that came from the client. Never raises."""
        self.broker.figures.bytes_received += len(data)
        try:
            self._feed(data)
        except FrameError as wrong:
            self.fail(wrong.code, str(wrong))
        except Exception:  # a mistake of ours ends this connection, and no other
            logger.exception("client %r: internal error", self.credentials.client_id)
            self.fail("internal", "internal error")

    def _feed(self, data: bytes) -> None:
        """Split `data` into frames and handle them. HOT."""
        if self.state is CLOSED:
            return
        if self.backlog is not None and not self.interrupted and not self.work_off():
            self.interrupted = True
            self.broker.interrupted(self)
        if self.received is not None:
            self.received += data
            self.missing -= len(data)
            if self.missing > 0 or self.interrupted:
                return
            data = bytes(self.received)
            self.received = None
        elif self.interrupted:
            self.keep(data, 0, 0)
            return
        if data[:1] != b"\n":
            data = b"\n" + data  # so that every frame follows a line's end
        at, end = 1, len(data)
        count, until = 0, 0.0
        fan_outs = self.broker.fan_outs
        while at < end:
            count += 1
            if count % LOOKS_AT_CLOCK == 0:
                now = self.broker.clock()
                if not until:
                    until = now + TURN
                elif now > until:
                    self.interrupt(data, at)
                    return
            shape = self._shape
            if shape is None or not data.startswith(shape.prefix, at):
                stop = data.find(b"\n", at)
                if (end if stop < 0 else stop) - at > MAX_LINE:
                    raise FrameError("too-long", f"a line has at most {MAX_LINE} bytes", ends=True)
                if stop < 0:
                    self.keep(data, at, 1)
                    return
                text = data[at:stop].rstrip(b"\r")
                if not text.strip():
                    at = stop + 1
                    continue
                self._came()
                asked = parse(text)
                if asked.command != "Publish":
                    at = stop + 1
                    until = until or self.broker.clock() + TURN
                    self._handle(asked)
                    if self.state is CLOSED:
                        return
                    if self.interrupted:
                        self.keep(data, at, 0)
                        return
                    if self.backlog is not None and not self.work_off():
                        self.interrupt(data, at)
                        return
                    if self.broker.clock() > until:
                        self.interrupt(data, at)
                        return
                    if self.broker.journal.full:
                        self.wait_for_room(data, at)
                        return
                    continue
                shape = self._read_shape(asked, data[at : stop + 1])
            stop = at + shape.size
            if stop > end:
                self.keep(data, at, stop - end)
                return
            if self.meter is not None and self.meter.is_spent:
                self.wait_for_budget(data, at)
                return
            if data[stop - 1] != _LF:
                if data[stop - 1 : stop + 1] != b"\r\n":  # as telnet ends lines
                    if stop == end and data[stop - 1] == 13:
                        self.keep(data, at, 1)
                        return
                    raise FrameError(
                        "bad-frame",
                        "Publish: after the payload there must be a line's end; is its length right?",
                        ends=True,
                    )
                if fan_outs.has_to_wait(shape.topic, 1):
                    self.wait_for_fan_outs(data, at)
                    return
                if self.meter is not None:
                    self.meter.grant(1, shape.size)
                self._publish(shape, data[at - 1 : stop - 1], 1)
                at = stop + 1
                continue
            stop = _run_end(shape, data, at)
            if fan_outs.has_to_wait(shape.topic, (stop - at) // shape.size):
                self.wait_for_fan_outs(data, at)
                return
            if self.meter is not None:
                stop = at + shape.size * self.meter.grant((stop - at) // shape.size, shape.size)
            self._publish(shape, data[at - 1 : stop - 1], (stop - at) // shape.size)
            at = stop
            if self.broker.journal.full:
                self.wait_for_room(data, at)
                return

    def _came(self) -> None:
        """Note that the client is there."""
        self._asked = False
        self._missed = 0

    def _handle(self, asked: Line) -> None:
        self.broker.figures.packets_received += 1
        handle = _COMMANDS.get(asked.command)
        try:
            if handle is None:
                expected = ", ".join(sorted([*_COMMANDS, "Publish"]))
                raise FrameError("unknown-command", f"{asked.command!r}: expected one of {expected}")
            handle(self, asked)
        except FrameError as wrong:
            if wrong.ends:
                raise
            self.say(error(wrong.code, str(wrong)))
        except InvalidTopic as wrong:
            self.say(error("bad-topic", f"{asked.command}: {wrong}"))
        except NotAllowed as wrong:
            self.say(error("not-authorized", f"{asked.command}: {wrong}"))
        except ConsumerError as wrong:
            self.say(error("bad-consumer", f"{asked.command}: {wrong}"))

    def say(self, frames: bytes | bytearray) -> None:
        """Send frames."""
        self.write(frames)
        self.broker.figures.packets_sent += 1

    # Coming and going

    def _connect(self, asked: Line) -> None:
        client_id = asked.word(0, "a client id").decode("utf-8", "replace")
        options = asked.options(1, ("clean", "resume", "ttl", "user", "password"))
        ttl = options.get("ttl", str(self.default_ttl))
        if not ttl.isdecimal():
            raise FrameError("bad-option", f"Connect: ttl={ttl}: expected a number of seconds")
        if self.session is not None:
            self._connected_already(client_id)
            return
        expiry = min(int(ttl), self.options.max_session_expiry)
        credentials, password = self.credentials, options.get("password")
        credentials.username = options.get("user")
        credentials.password = None if password is None else password.encode()
        self._open(client_id, "resume" not in options, expiry, asked=True)

    def _connected_already(self, client_id: str) -> None:
        raise FrameError("connected", "Connect: comes first, and once")

    def _open(self, client_id: str, clean: bool, expiry: int, asked: bool = False) -> None:
        """Give the client its session, if it may have one."""
        broker = self.broker
        self.credentials.client_id = client_id
        if client_id not in broker.sessions and len(broker.sessions) >= broker.limits.max_sessions:
            raise FrameError("full", "there are too many sessions", ends=True)
        self.identify(partial(self._let_in, client_id, clean, expiry, asked))

    def _let_in(
        self, client_id: str, clean: bool, expiry: int, asked: bool, verdict: Accept | Refuse
    ) -> None:
        broker, credentials = self.broker, self.credentials
        if isinstance(verdict, Refuse):
            credentials.password = None
            raise FrameError("not-authorized", verdict.reason or "not authorized", ends=True)
        credentials.become(verdict)
        account = broker.quotas.account_of(credentials)
        refusal = broker.quotas.session_refusal(account, client_id)
        if refusal:
            raise FrameError("full", refusal, ends=True)
        before = broker.sessions.get(client_id)
        lasted = before is not None and before.lasting
        session, present = broker.open_session(client_id, clean, account)
        broker.prune(session, credentials)
        broker.set_expiry(session, expiry)
        session.will = None
        self.session = session
        self.state = CONNECTED
        broker.attached(session, self, min(self.window, broker.limits.max_inflight))
        if asked:
            self.say(line("Ack", "Connect", client_id, "resumed" if present else "new"))
        if session.lasting or lasted or self.meter is not None:
            self.wait_for_journal()
        self.tell_connected("line", present)
        session.resume(broker.reading_rights(session, credentials))
        if session.latest is not None:
            self._due_before = deque(session.latest.values)
            self._send_due()

    @property
    def default_ttl(self) -> int:
        """For how many seconds a session outlives its connection if nothing is said."""
        return 0

    @property
    def window(self) -> int:
        """How many messages may be in flight to the client."""
        return self.broker.limits.max_inflight

    def _opened(self) -> Session:
        """Return the client's session; one that did not ask for any gets one that ends with it."""
        if self.session is None:
            self._open(self.broker.new_client_id(), True, self.default_ttl)
        assert self.session is not None
        return self.session

    def _disconnect(self, asked: Line) -> None:
        asked.options(0, ())
        self._part(line("Ack", "Disconnect"))

    def input_ended(self) -> None:
        """Take note that the client has said all it has to say; what it asked for is answered first."""
        if self.state is CLOSED or self._farewell is not None:
            self.transport.abort()
        else:
            self._part(b"")

    def _part(self, farewell: bytes) -> None:
        """End the connection when everything that the client asked for is answered."""
        self.why = "the client disconnected" if farewell else "the client closed the connection"
        self._farewell = farewell
        self.hold()
        self._in_order(self._answered)

    def go_on(self) -> None:
        """Handle more of what came, or send more of what was asked for last."""
        if self._farewell is None:
            super().go_on()
        else:
            self._answered()

    def _answered(self) -> None:
        """Say the last word, if the client wants to go and no answer is missing."""
        if self._farewell is None or self._pulling or self.state is CLOSED:
            return
        if self.backlog is not None and not self.work_off():
            self.broker.interrupted(self)
            return
        if self._farewell:
            self.say(self._farewell)
        self.leave(send_will=not self._farewell)
        self.close()

    def _ping(self, asked: Line) -> None:
        self.say(line("Pong", *asked.words[:1]))

    def _pong(self, asked: Line) -> None:
        """Take the answer to a Ping: that it came is all there is to it."""

    # Publishing

    def _read_shape(self, asked: Line, prefix: bytes) -> Shape:
        topic = asked.word(0, "a topic")
        length = asked.number(1, "the length of the payload")
        if length > self.broker.limits.max_packet_size:
            most = self.broker.limits.max_packet_size
            raise FrameError("too-long", f"Publish: a payload has at most {most} bytes here", ends=True)
        try:
            options = asked.options(2, ("retain", "noack", "id"))
        except FrameError as wrong:
            # The payload comes whatever is wrong, and is not to be taken for commands.
            raise FrameError(wrong.code, str(wrong), ends=True) from None
        size = len(prefix) + length + 1
        qos = 0 if "noack" in options else 1
        plain = prefix == line("Publish", topic, length, noack=True)
        form = FORM if plain else -1
        shape = Shape(prefix, size, topic, qos, "retain" in options, options.get("id"), form)
        self._shape = shape
        return shape

    def _refusal(self, shape: Shape) -> tuple[str, str] | None:
        """Return why messages of a shape are not taken, if they are not."""
        broker, topic = self.broker, shape.topic
        if topic not in broker.subscriptions.routes:  # what is there has been checked
            try:
                topic.decode()
                check_topic(topic, broker.limits.max_topic_levels)
            except UnicodeDecodeError:
                return "bad-topic", "Publish: a topic is UTF-8"
            except InvalidTopic as wrong:
                return "bad-topic", f"Publish: {wrong}"
        if topic.startswith(SYSTEM):
            return "not-authorized", "Publish: no one publishes on $SYS but the broker"
        refusal = broker.catalog.refusal(topic)
        if refusal:
            return "no-topic", f"Publish: {refusal}"
        access = broker.access
        if access.checks_topics and not access.may_publish(self.credentials, topic.decode()):
            return "not-authorized", f"Publish: not authorized for {topic.decode()!r}"
        return None

    def _publish(self, shape: Shape, data: bytes, count: int) -> None:
        """Publish a run of messages; `data` begins with the end of the line before the first."""
        session = self._opened()
        self._came()
        figures = self.broker.figures
        figures.publish_received += count
        figures.publish_bytes_received += len(data)
        at = len(shape.prefix) + 1
        batch = Batch(
            shape.topic,
            data,
            shape.qos,
            shape.retain,
            origin=session.client_id,
            count=count,
            stride=len(data) // count,
            payload_at=at,
            form=shape.form,
        )
        refusal = self._refusal(shape)
        if refusal is None and shape.retain:
            batch = batch.owned_by(session.account)
            fault = self.broker.retain_fault(batch)
            if fault is not None:
                figures.quota_refused += count * fault.quota
                refusal = "full", f"Publish: {fault.text}"
        if refusal is not None:
            figures.messages_dropped += count
            answer = error(*refusal) * count
            self._in_order(partial(self._answer, session, answer, count))
            return
        publish = self.broker.publish
        if self.meter is not None:
            publish = partial(self.broker.publish_for, self.meter)
        done = partial(self._published, session, shape, count)
        if not shape.qos:
            publish(batch)
        elif not self._unkept:
            publish(batch, done=done)
        else:  # it is safe before others are answered, and yet has to wait for them
            told: list[tuple[bool, Fault | None]] = []
            publish(batch, done=lambda matched, fault: told.append((matched, fault)))
            self._when_kept(lambda: done(*told[0]))

    def _published(self, session: Session, shape: Shape, count: int, _: bool, fault: Fault | None) -> None:
        if fault is not None:
            answer = error("full" if fault.full else "not-kept", f"Publish: {fault.text}")
        else:
            answer = line("PubAck", shape.topic, id=shape.request)
        self._answer(session, answer * count, count)

    def _in_order(self, call: Callable[[], object]) -> None:
        """Call when everything that came before is answered."""
        if self._unkept:
            self._when_kept(call)
        else:
            self.broker.journal.in_turn(call)

    def _when_kept(self, call: Callable[[], object]) -> None:
        """Call when everything that was noted so far is safe."""
        self.broker.journal.after(self._before_others(call))

    def _before_others(self, call: Callable[[], object]) -> Callable[[], object]:
        """Have what comes later answered after a call; return how to make it."""
        self._unkept += 1

        def kept() -> None:
            self._unkept -= 1
            call()

        return kept

    def when_safe(self, call: Callable[[], object]) -> None:
        """Call when the session's state is safe, unless the client has left by then."""
        session = self.session
        assert session is not None
        wait = self._when_kept if session.lasting else self._in_order
        wait(lambda: call() if self.session is session else None)

    def _answer(self, session: Session, answer: bytes, count: int = 1) -> None:
        """Send answers, unless the client has left meanwhile."""
        if self.session is session:
            self.write(answer)
            self.broker.figures.packets_sent += count

    # Subscribing

    def _position(self, asked: Line, text: str | None) -> Position | None:
        if text is None:
            return None
        if not self.broker.journal.streams:
            raise FrameError("no-log", f"{asked.command}: there is no log to send the past from")
        try:
            return parse_position(text)
        except ValueError as wrong:
            raise FrameError("bad-option", f"{asked.command}: from={text}: {wrong}") from None

    def _filter(self, asked: Line) -> tuple[bytes, str | None, bytes]:
        """Return a filter as it was written, its group and the filter within, both checked."""
        key = asked.word(0, "a topic filter")
        try:
            key.decode()
        except UnicodeDecodeError:
            raise InvalidTopic("a filter is UTF-8") from None
        group, topic_filter = split_shared(key)
        check_filter(topic_filter, self.broker.limits.max_topic_levels)
        return key, group, topic_filter

    def _check_access(self, asked: Line, topic_filter: bytes, pull: bool = False) -> None:
        access, name = self.broker.access, topic_filter.decode()
        may = access.may_pull if pull else access.may_subscribe
        if access.checks_topics and not may(self.credentials, name):
            raise FrameError("not-authorized", f"{asked.command}: not authorized for {name!r}")

    def _subscribe(self, asked: Line) -> None:
        broker, session = self.broker, self._opened()
        key, group, topic_filter = self._filter(asked)
        options = asked.options(1, ("ack", "latest", "from"))
        start = self._position(asked, options.get("from"))
        self._check_access(asked, topic_filter)
        if start is not None:
            self._check_access(asked, topic_filter, pull=True)
        refusal = broker.catalog.filter_refusal(topic_filter)
        if refusal:
            raise FrameError("no-topic", f"Subscribe: {refusal}")
        if (
            key not in session.subscriptions
            and len(session.subscriptions) >= broker.limits.max_subscriptions_per_client
        ):
            raise FrameError("full", "Subscribe: there are too many subscriptions")
        if key not in session.subscriptions:
            over_quota = broker.quotas.refusal(session.account, "subscriptions")
            if over_quota:
                raise FrameError("full", f"Subscribe: {over_quota}")
        latest = "latest" in options
        if latest and group is not None:
            raise FrameError("bad-option", "Subscribe: a shared subscription has no latest value")
        subscription = Subscription(session, topic_filter, 1 if "ack" in options and not latest else 0)
        subscription.latest = latest
        broker.subscribe(subscription, group, key)

        at_once = True

        def granted() -> None:
            self.say(line("SubAck", key))
            if group is None and start is None:
                self.add_work(broker.send_retained(subscription))
                if not at_once and not self.interrupted:
                    broker.interrupted(self)

        self.when_safe(granted)
        at_once = False
        if start is not None:
            broker.replay_from(key, subscription, start)

    def _unsubscribe(self, asked: Line) -> None:
        session = self._opened()
        key, _, _ = self._filter(asked)
        asked.options(1, ())
        if not self.broker.unsubscribe(session, key):
            raise FrameError("no-subscription", f"Unsubscribe: there is no subscription to {key.decode()!r}")
        self.when_safe(lambda: self.say(line("Ack", "Unsubscribe", key)))

    def _acknowledge(self, asked: Line) -> None:
        session = self._opened()
        if not asked.words:
            raise FrameError("missing-word", "Ack: expected the number of a message, or a range such as 1-10")
        if len(asked.words) > MAX_WORDS:
            raise FrameError("too-long", f"Ack: expected at most {MAX_WORDS} numbers or ranges in a line")
        ranges: list[range] = []
        for word in asked.words:
            first, dash, last = word.partition(b"-")
            if not first.isdigit() or (dash and not last.isdigit()) or len(word) > 20:
                raise FrameError("bad-number", "Ack: expected numbers of messages, or ranges such as 1-10")
            ranges.append(range(int(first), int(last or first) + 1))
        self.add_work(self._acknowledge_in_steps(session, merge(ranges)))

    def _acknowledge_in_steps(self, session: Session, ranges: list[range]) -> Iterator[None]:
        """Take acknowledgements, a few at each step."""
        for numbers in among(within(ranges, 0, FIRST_NUMBER), session.inflight_ids):
            for number in numbers:
                self.acknowledged(number)
            try:
                session.acknowledge(numbers)
            except WrongAcknowledgement:  # sent with QoS 2, for an MQTT client that had this session before
                for number in numbers:
                    if session.received((number,)):
                        session.complete((number,))
            yield
        for numbers in among(within(ranges, FIRST_NUMBER, self._next_number), self._numbered.keys()):
            pulled: dict[Consumer, list[Place]] = {}
            for number in numbers:
                waited = self._numbered.pop(number)
                if isinstance(waited, Pulled):
                    pulled.setdefault(waited.consumer, []).append(waited.place)
                self.acknowledged(number)
                if isinstance(waited, bytes):
                    self._latest_acknowledged(waited)
            for consumer, places in pulled.items():
                consumer.acknowledge(places, lambda _: None)
            yield

    def acknowledged(self, number: int) -> None:
        """Note that the client has a message: over TCP there is nothing more to it."""

    # Topics and pull

    def _list(self, asked: Line) -> None:
        self._opened()
        topic_filter = asked.word(0, "a topic filter") if asked.words else b"#"
        check_filter(topic_filter, self.broker.limits.max_topic_levels)
        asked.options(1, ())
        self._check_access(asked, topic_filter)
        self.add_work(self._list_in_steps(topic_filter))

    def _list_in_steps(self, topic_filter: bytes) -> Iterator[None]:
        """Gather the topics of a List, one at each step, and send them."""
        listed = bytearray()
        for found in self.broker.topics_for(topic_filter):
            if found is not None:
                topic, kept = found
                listed += escape(topic)
                if kept is not None:
                    listed += b" "
                    for at in range(0, min(len(kept), self.max_list + 1), ESCAPED_A_STEP):
                        listed += escape(kept[at : at + ESCAPED_A_STEP])
                        yield
                listed += b"\n"
                if len(listed) > self.max_list:
                    text = f"List: the list has more than {self.max_list} bytes: ask for fewer topics"
                    self.say(error("too-long", text))
                    return
            yield
        self.write(line("List", max(0, len(listed) - 1)))
        self.say(listed or b"\n")

    @property
    def max_list(self) -> int:
        """How many bytes the answer to a List may have."""
        return self.broker.limits.max_waiting_bytes

    def _create(self, asked: Line) -> None:
        topic = self._topic_to_change(asked)
        new = "new" in asked.options(1, ("new",))
        if new and topic in self.broker.catalog.created.values:
            raise FrameError("exists", f"Create: topic {topic.decode()!r} already exists")
        self._changed_topic(asked, topic, self.broker.create_topic(topic))

    def _delete(self, asked: Line) -> None:
        topic = self._topic_to_change(asked)
        asked.options(1, ())
        self._changed_topic(asked, topic, self.broker.delete_topic(topic))

    def _topic_to_change(self, asked: Line) -> bytes:
        """Return the topic of a command, once it is known that the client may create and delete it."""
        self._opened()
        topic = asked.word(0, "a topic")
        try:
            name = topic.decode()
        except UnicodeDecodeError:
            raise InvalidTopic("a topic is UTF-8") from None
        check_topic(topic, self.broker.limits.max_topic_levels)
        access = self.broker.access
        if access.checks_topics and not access.may_admin(self.credentials, name):
            raise FrameError("not-authorized", f"{asked.command}: not authorized for {name!r}")
        return topic

    def _changed_topic(self, asked: Line, topic: bytes, refusal: str) -> None:
        """Answer a command that changed a topic, or was refused."""
        if refusal:
            raise FrameError("no-topic", f"{asked.command}: {refusal}")
        self._when_kept(partial(self._answer, self._opened(), line("Ack", asked.command, topic)))

    def _register(self, asked: Line) -> None:
        self._opened()
        name = asked.word(0, "the name of a consumer").decode("utf-8", "replace")
        topic_filter = asked.word(1, "a topic filter")
        check_filter(topic_filter, self.broker.limits.max_topic_levels)
        options = asked.options(2, ("from",))
        start = self._position(asked, options.get("from", "earliest"))
        assert start is not None
        self._check_access(asked, topic_filter, pull=True)
        refusal = self.broker.catalog.filter_refusal(topic_filter)
        if refusal:
            raise FrameError("no-topic", f"Register: {refusal}")
        answer = partial(self._answer, self._opened(), line("Ack", "Register", name))
        kept = self._before_others(answer)
        try:
            consumers.create(
                self.broker, self.credentials, name, topic_filter, start, ACKNOWLEDGE_WITHIN, kept
            )
        except consumers.ConsumerError:
            self._unkept -= 1
            raise

    def _unregister(self, asked: Line) -> None:
        session = self._opened()
        name = asked.word(0, "the name of a consumer").decode("utf-8", "replace")
        asked.options(1, ())
        consumer = consumers.find(self.broker, self.credentials, name)
        answer = partial(self._answer, session, line("Ack", "Unregister", name))
        consumers.delete(consumer, self._before_others(answer))

    def _pull(self, asked: Line) -> None:
        session = self._opened()
        name = asked.word(0, "the name of a consumer").decode("utf-8", "replace")
        count = asked.number(1, "how many messages") if len(asked.words) > 1 else 1
        asked.options(2, ())
        if not 1 <= count <= MAX_FETCH:
            raise FrameError("bad-number", f"Pull: expected a number from 1 to {MAX_FETCH}, not {count}")
        if len(self._numbered) + count > MAX_NUMBERED:
            raise FrameError("full", "Pull: too many messages wait for their Ack")
        consumer = consumers.find(self.broker, self.credentials, name)
        self._pulling += 1
        give, done = partial(self._give, session, consumer), partial(self._pulled, session, consumer)
        fetch = partial(consumer.fetch, count, give, done)
        self.broker.journal.after(fetch)  # so that its answer comes after those to what was asked before

    def _give(self, session: Session, consumer: Consumer, place: Place, batch: Batch) -> None:
        if self.session is session:  # else it is given out again when its time has come
            self.write(message(batch, self.count(Pulled(consumer, place)), b" pull"))

    def _pulled(self, session: Session, consumer: Consumer, count: int) -> None:
        self._pulling -= 1
        if self.session is session:
            # A topic that was deleted has nothing more to give: the client would pull in vain for ever.
            refusal = "" if count else self.broker.catalog.filter_refusal(consumer.topic_filter)
            answer = error("no-topic", f"Pull: {refusal}") if refusal else None
            self.say(answer or line("Ack", "Pull", consumer.name, count))
            self._answered()

    def count(self, waits: Pulled | bytes) -> int:
        """Return the number of a message that is to be acknowledged by it."""
        number = self._next_number
        self._next_number += 1
        self._numbered[number] = waits
        return number

    def forget_number(self, number: int) -> None:
        """Note that nothing waits for an Ack after all."""
        self._numbered.pop(number, None)

    # Messages out

    def can_take(self, batch: Batch, target: Subscription, qos: int) -> bool:
        """Tell whether messages are not too large for this client: none is."""
        return True

    def takes_as_it_came(self, batch: Batch, target: Subscription, qos: int) -> bool:
        """Tell whether a batch's bytes are what this client would be sent: they never are."""
        return False

    def forward(self, batch: Batch, target: Subscription) -> None:
        """Send a whole batch without asking for an Ack. HOT: once for every batch and receiver."""
        for part in batch.parts():
            if target.latest:
                self.send_latest(part)
                continue
            data = _messages(part)
            if not self.has_room(len(data)):
                if target.lossless and part.stream is not None:
                    self.broker.leave_behind(target, part)
                    return
                self.broker.figures.messages_dropped += part.count
                continue
            self.write(data)
            self.count_sent(part.count, len(data))

    def send_latest(self, batch: Batch) -> None:
        """Send a topic's newest message, or have it wait in place of an older one."""
        assert self.session is not None
        self.session.keep_latest(batch)
        if batch.topic not in self._under_way:
            self._due[batch.topic] = None
            self._send_due()

    def _latest_acknowledged(self, topic: bytes) -> None:
        """Note that the client has a topic's message; if a newer one waits, send that."""
        sent = self._under_way.pop(topic, None)
        latest = self.session.latest if self.session is not None else None
        if sent is None or latest is None:
            return
        if latest.values.get(topic) is sent:
            latest.remove(topic)
        elif topic in latest.values:
            self._due[topic] = None
        self._send_due()

    def _send_due(self) -> None:
        """Send the latest messages of topics, as many as may be under way."""
        latest = self.session.latest if self.session is not None else None
        if latest is None:
            return
        until, count = 0.0, 0
        before = self._due_before
        while (before or self._due) and len(self._under_way) < self.window:
            count += 1
            if count % SENT_TOGETHER == 0:
                until = until or self.broker.clock() + TURN
                if self.broker.clock() > until:
                    if not self._will_send_due:
                        self._will_send_due = True
                        self.broker.soon(self._send_more_due)
                    return
            topic = before.popleft() if before else self._due.popitem(last=False)[0]
            newest = latest.values.get(topic)
            if newest is None or topic in self._under_way:
                continue
            if newest.expires_at is not None and newest.expires_at <= self.broker.now:
                latest.remove(topic)
                continue
            self._under_way[topic] = newest
            number = self.count(topic)
            self.emit_numbered(number, message(newest, number))

    def _send_more_due(self) -> None:
        self._will_send_due = False
        self._send_due()

    def emit_numbered(self, number: int, frame: bytes) -> None:
        """Send a message that was numbered here."""
        self.write(frame)
        self.count_sent(1, len(frame))

    def send(
        self, batch: Batch, start: int, stop: int, target: Subscription, qos: int, first_id: int, dup: bool
    ) -> bool:
        """Send messages, each with its number, if they are to be acknowledged."""
        if not qos:
            self.forward(batch.part(start, stop), target)
            return True
        numbers = range(first_id, first_id + stop - start)
        parts = [single for part in batch.part(start, stop).parts() for single in singles(part)]
        data = b"".join([message(part, number) for part, number in zip(parts, numbers, strict=True)])
        self.write(data)
        self.count_sent(stop - start, len(data))
        return True

    def count_sent(self, count: int, size: int) -> None:
        """Count messages that were sent."""
        figures = self.broker.figures
        figures.publish_sent += count
        figures.publish_bytes_sent += size

    def release(self, message_id: int) -> None:
        """End a QoS 2 delivery that another protocol began: the client has the message."""
        if self.session is not None:
            self.broker.soon(partial(self.session.complete, (message_id,)))

    # Time and the end

    def due(self) -> None:
        """Ask the client whether it is there; after some rounds without an answer, give it up."""
        if self.state is CLOSED:
            self.transport.abort()
            return
        if self._asked and not self.is_throttled:
            self._missed += 1
            most = self.options.missed_rounds
            if self.options.watch is not None:
                self.watched("Silent")
            elif most:
                logger.warning("%s has not answered Ping (%d of %d)", self.peer, self._missed, most)
            elif self._missed == 1:
                logger.warning("%s has not answered Ping", self.peer)
            if most and self._missed >= most:
                self.fail("silent", "no Pong came")
                return
        self._asked = True
        self.say(line("Ping"))
        self.broker.timers.set(self, self.broker.now + self.options.ping_interval)

    def watched(self, event: str) -> None:
        """Tell whoever watches connections of an event."""
        if self.options.watch is not None:
            self.options.watch(event, self.peer)

    def lost(self) -> None:
        """Note that the transport is gone."""
        super().lost()
        self.watched("Disconnected")

    def log_in_overdue(self) -> None:
        """End the connection of a client that has not logged in in time."""
        self.fail("silent", "no log-in came in time")

    def fail(self, code: str, text: str) -> None:
        """End the connection for a fault, and say why."""
        if self.state is CLOSED:
            return
        if self.state is CONNECTED:
            self.why = text
        else:
            self.tell_refused(NOT_AUTHORIZED if code == "not-authorized" else 0, text)
        self.leave(send_will=True)
        self.say(error(code, text))
        self.close()

    def displaced(self) -> None:
        """Make way for another connection of the same client."""
        self.why = "taken over by another connection"
        self.say(error("displaced", "another connection has come with this client id"))
        self.session = None
        self.close()

    def ended(self, reason: int) -> None:
        """End the connection for a reason of the broker's own."""
        self.why = "the broker is shutting down" if reason == 0x8B else "the broker ends this"
        self.say(error("ended", "the broker is shutting down" if reason == 0x8B else "the broker ends this"))
        self.leave(send_will=False)
        self.close()


_COMMANDS: dict[str, Callable[[LineConnection, Line], None]] = {
    "Connect": LineConnection._connect,
    "Subscribe": LineConnection._subscribe,
    "Unsubscribe": LineConnection._unsubscribe,
    "Ack": LineConnection._acknowledge,
    "Ping": LineConnection._ping,
    "Pong": LineConnection._pong,
    "List": LineConnection._list,
    "Create": LineConnection._create,
    "Delete": LineConnection._delete,
    "Register": LineConnection._register,
    "Unregister": LineConnection._unregister,
    "Pull": LineConnection._pull,
    "Disconnect": LineConnection._disconnect,
}


def _run_end(shape: Shape, data: bytes, at: int) -> int:
    """Return where the run of frames ends that begins at `at` with a whole one. HOT."""
    size, length = shape.size, len(shape.prefix)
    between = b"\n" + shape.prefix  # the end of one frame, and the beginning of the next
    at += size
    first, last = at, len(data) - size
    if last - at >= MANY * size and data[at - 1 : at + length] == between:
        at += count_alike(data, at, size, words(between, -1)) * size
    else:
        while at <= last and data[at - 1 : at + length] == between:
            at += size
    if at > first and data[at - 1] != _LF:
        at -= size
    return at


def _head(batch: Batch) -> bytes:
    return b"Message %s %d" % (escape(batch.topic), batch.stride - batch.payload_at)


def message(batch: Batch, number: int, options: bytes = b"") -> bytes:
    """Write a message that is to be acknowledged by its number."""
    if batch.retain:
        options += b" retain"
    return b"%s n=%d%s\n%s\n" % (_head(batch), number, options, batch.payload())


def _messages(batch: Batch) -> bytes:
    """Write the messages of a batch, once for all who want them so."""
    wires = batch.wires
    if wires is None:
        wires = batch.wires = {}
    wire: bytes | None = wires.get("line")
    if wire is None and batch.form == FORM:
        # What came is what is sent, but for the first word: `Publish` and `Message` have as many letters.
        data = bytearray(batch.data)
        for at, letter in enumerate(b"Message", 1):
            data[at :: batch.stride] = bytes((letter,)) * batch.count
        wire = wires["line"] = bytes(memoryview(data)[1:]) + b"\n"
    elif wire is None:
        head = _head(batch) + (b" retain\n" if batch.retain else b"\n")
        wire = wires["line"] = head + (b"\n" + head).join(batch.payloads()) + b"\n"
    return wire


def singles(batch: Batch) -> list[Batch]:
    """Return the messages of a batch that is not mixed, each by itself."""
    return [batch.part(index, index + 1) for index in range(batch.count)]

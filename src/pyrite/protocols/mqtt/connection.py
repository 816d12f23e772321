"""One client's connection: bytes in, broker calls, bytes out. No I/O: a listener feeds it what it read.

`feed` splits what came into packets. PUBLISH and its acknowledgements, the bulk of all traffic, go to
publishing.py in runs; other packets are decoded and handled here; CONNECT and AUTH in handshake.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pyrite.broker.access import Exchange
from pyrite.broker.core import TURN
from pyrite.broker.link import Transport
from pyrite.broker.positions import Position, parse_position
from pyrite.broker.session import WrongAcknowledgement
from pyrite.broker.subscriptions import Subscription
from pyrite.protocols.mqtt import fields, handshake, publishing
from pyrite.protocols.mqtt.delivery import FORM_V3, Delivery
from pyrite.protocols.mqtt.options import MqttOptions
from pyrite.protocols.mqtt.packets import (
    V5,
    V311,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Ping,
    Suback,
    Subscribe,
    Unsubscribe,
    Wish,
    decode,
    encode,
)
from pyrite.protocols.mqtt.reasons import ProtocolError, Reason, describe, malformed, return_code, violation
from pyrite.protocols.states import AUTHENTICATING, CLOSED, CONNECTED, WAITING
from pyrite.topics.filters import SHARE_PREFIX, InvalidTopic, check_filter, split_shared

if TYPE_CHECKING:
    from pyrite.broker.core import Broker

logger = logging.getLogger(__name__)

MAX_PACKET = 5 + fields.MAX_REMAINING_LENGTH
MAX_CONTROL_PACKET = 1024 * 1024
"""Bytes of a packet other than PUBLISH: it is decoded in one go."""
SIGN_OF_LIFE = 1_000
"""Bytes of a packet under way that count for the keep-alive: a large packet may take its time, not a drip."""


YES_OR_NO = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(
    ("false", "0", "no", "off"), False
)


class Extras(NamedTuple):
    """What a SUBSCRIBE asks for beyond MQTT."""

    start: Position | None
    """From where on the past is to be sent before the present (user property `pyrite-from`)."""
    lossless: bool
    """Whether QoS 0 messages that there is no room for are to be sent later (`pyrite-lossless`)."""
    wrong: str
    """What is wrong with it, if anything is."""


class Connection(Delivery):
    """The MQTT protocol for one client, of any version, over any transport."""

    __slots__ = (
        "aliases_in",
        "connect",
        "exchange",
        "keep_alive",
        "method",
        "options",
        "problem_information",
        "shape",
        "version",
    )

    def __init__(self, broker: Broker, options: MqttOptions, transport: Transport, address: str) -> None:
        super().__init__(broker, transport, address)
        self.options = options
        self.version = V311
        self.form = FORM_V3
        self.max_packet = MAX_PACKET
        self.aliases = None
        self.max_aliases = 0
        self.connect: Connect | None = None
        """The CONNECT of a client that is still authenticating."""
        self.exchange: Exchange | None = None
        """The enhanced authentication under way."""
        self.method: str | None = None
        """The authentication method that the client chose when it connected."""
        self.problem_information = True
        self.aliases_in: dict[int, bytes] | None = None
        self.shape: publishing.Shape | None = None
        """How the last PUBLISH looked."""
        self.keep_alive = 0.0
        """Seconds of silence after which the client is given up; 0 for never."""
        broker.timers.set(self, broker.now + broker.limits.connect_timeout)

    # Bytes in

    def feed(self, data: bytes) -> None:
        """Take bytes that came from the client. Never raises."""
        self.broker.figures.bytes_received += len(data)
        try:
            self._feed(data)
        except ProtocolError as error:
            self.fail(error.reason, str(error))
        except WrongAcknowledgement as error:
            self.fail(Reason.PROTOCOL_ERROR, str(error))
        except Exception:
            # A mistake of ours ends this connection, and no other.
            logger.exception("client %r: internal error", self.credentials.client_id)
            self.fail(Reason.UNSPECIFIED_ERROR, "internal error")

    def _feed(self, data: bytes) -> None:
        """Split `data` into packets and handle them. HOT."""
        until = 0.0
        if self.backlog is not None and not self.interrupted:
            until = self.broker.clock() + TURN
            if not self.work_off(until):
                self.interrupted = True
                self.broker.interrupted(self)
        if self.received is None and self.interrupted:
            self.keep(data, 0, 0)
            return
        if self.received is not None:
            self.received += data
            self.missing -= len(data)
            if self.missing > 0 or self.interrupted:
                if len(data) >= SIGN_OF_LIFE:
                    self.seen_at = self.broker.now
                return
            data = bytes(self.received)
            self.received = None
        self.seen_at = self.broker.now
        at, end = 0, len(data)
        clock, fan_outs = self.broker.clock, self.broker.fan_outs
        largest = min(MAX_CONTROL_PACKET, self.broker.limits.max_packet_size)
        is_first = True  # most reads bring one packet, or one run: no look at the clock for those
        while at < end:
            if is_first:
                is_first = False
            elif not until:
                until = clock() + TURN
            elif clock() > until:
                self.interrupt(data, at)
                return
            if self.state is not CONNECTED and not self._may_start(data[at]):
                return
            shape = self.shape
            if (
                shape is not None
                and data[at : at + shape.prefix_length] == shape.prefix
                and at + shape.size <= end
                and (not shape.property_bytes or data.startswith(shape.property_bytes, at + shape.id_at + 2))
            ):
                stop = at + shape.size
                if stop < end:
                    stop = publishing.run_end(self, shape, data, at)
                if fan_outs.is_full and fan_outs.has_to_wait(shape.topic, (stop - at) // shape.size):
                    self.wait_for_fan_outs(data, at)
                    return
                if self.meter is not None:
                    if self.meter.is_spent:
                        self.wait_for_budget(data, at)
                        return
                    stop = at + shape.size * self.meter.grant((stop - at) // shape.size, shape.size)
                publishing.publish(self, shape, data[at:stop])
                at = stop
                if shape.singly and self.backlog is not None:
                    until = until or clock() + TURN
                    if not self.work_off(until):
                        self.interrupt(data, at)
                        return
                if self.broker.journal.full:
                    self.wait_for_room(data, at)
                    return
                continue
            if end - at < 2:
                break
            first, length = data[at], data[at + 1]
            body = at + 2
            if length > 127:
                length &= 127
                shift = 7
                while body < end and shift < 28:
                    byte = data[body]
                    length |= (byte & 127) << shift
                    body += 1
                    shift += 7
                    if byte < 128:
                        if byte == 0:
                            raise malformed("a length is longer than it need be")  # [MQTT-1.5.5-1]
                        break
                else:
                    if shift >= 28:
                        raise malformed("a length is longer than four bytes")
                    break
            stop = body + length
            if stop - at > largest or self.state is not CONNECTED:
                self._check_size(first, stop - at)
            if stop > end:
                self.keep(data, at, stop - end)
                return
            if first >> 4 == fields.PUBLISH:
                if self.meter is not None and self.meter.is_spent:
                    self.wait_for_budget(data, at)
                    return
                shape = self.shape = publishing.read_shape(self, data, at, body, stop)
                run = publishing.run_end(self, shape, data, at)
                if fan_outs.is_full:
                    mixes = run == stop < end and shape.plain
                    count = publishing.MAX_MIXED if mixes else (run - at) // shape.size
                    if fan_outs.has_to_wait(shape.topic, count):
                        self.wait_for_fan_outs(data, at)
                        return
                if self.meter is not None:
                    run = at + shape.size * self.meter.grant((run - at) // shape.size, shape.size)
                mixed = None
                if run == stop < end and shape.plain:
                    mixed = publishing.read_mixed(self, shape, data, at)
                if mixed is None:
                    stop = run
                    publishing.publish(self, shape, data[at:stop])
                else:
                    batch, route = mixed
                    stop = at + len(batch.data)
                    publishing.publish_mixed(self, batch, route)
            elif length == 2 and first in (0x40, 0x50, 0x62, 0x70):
                count = publishing.ack_run(data, at)
                self.broker.figures.packets_received += count
                stop = at + 4 * count
                publishing.acknowledged(self, first, data[at:stop])
            else:
                self.broker.figures.packets_received += 1
                self._handle(first, data[body:stop])
                if self.interrupted:
                    self.keep(data, stop, 0)
                    return
            at = stop
            if self.backlog is not None:
                until = until or clock() + TURN
                if not self.work_off(until):
                    self.interrupt(data, at)
                    return
            if self.broker.journal.full:
                self.wait_for_room(data, at)
                return
        if at < end:
            self.keep(data, at, 1)

    def _check_size(self, first: int, size: int) -> None:
        """Raise ProtocolError if a packet of this size is larger than it may be, before it is all there."""
        limits = self.broker.limits
        if self.state is not CONNECTED and size > limits.before_login:
            raise ProtocolError(
                Reason.PACKET_TOO_LARGE, f"a packet has at most {limits.before_login} bytes before the log-in"
            )
        if size > limits.max_packet_size:
            raise ProtocolError(Reason.PACKET_TOO_LARGE, "the packet is larger than the maximum")
        if size > MAX_CONTROL_PACKET and first >> 4 != fields.PUBLISH:
            raise ProtocolError(
                Reason.QUOTA_EXCEEDED,
                f"a packet other than PUBLISH has at most {MAX_CONTROL_PACKET} bytes here",
            )

    def _may_start(self, first: int) -> bool:
        """Tell whether a packet that begins with `first` may come in the present state."""
        if self.state is CLOSED:
            return False
        if self.state is WAITING and first >> 4 != fields.CONNECT:
            self.close()  # [MQTT-3.1.0-1]: who does not speak MQTT is not answered in it
            return False
        if self.state is AUTHENTICATING and first >> 4 not in (fields.AUTH, fields.DISCONNECT):
            raise violation("only AUTH and DISCONNECT may come before CONNACK")  # [MQTT-3.1.2-30]
        return True

    # Packets in

    def _handle(self, first: int, body: bytes) -> None:
        if first >> 4 == fields.CONNECT and self.state is not WAITING:
            raise violation("a second CONNECT")  # [MQTT-3.1.0-2]
        if self.state is WAITING:
            handshake.peek_version(self, body)
        packet = decode(first, body, self.version)
        match packet:
            case Ping(fields.PINGREQ):
                self.write(b"\xd0\x00")  # [MQTT-3.12.4-1]
                self.broker.figures.packets_sent += 1
            case Subscribe():
                self._subscribe(packet)
            case Unsubscribe():
                self._unsubscribe(packet)
            case Ack():
                self._acknowledged(packet)
            case Disconnect():
                self._disconnected(packet)
            case Connect():
                handshake.connect(self, packet)
            case Auth():
                handshake.auth(self, packet)
            case _:
                raise violation("a packet that only a server sends")

    def _subscribe(self, packet: Subscribe) -> None:
        identifier = packet.properties.get("subscription_identifier")
        if identifier is not None and not self.options.subscription_identifiers:
            raise ProtocolError(
                Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED, "there are no subscription identifiers"
            )
        self.add_work(self._subscribing(packet, identifier, self._extras(packet)))

    def _subscribing(self, packet: Subscribe, identifier: int | None, extras: Extras) -> Iterator[None]:
        """Subscribe to one filter in each step, and answer at the end."""
        reasons: list[int] = []
        fresh: list[Subscription] = []
        past: list[tuple[bytes, Subscription]] = []
        unknown = self._unknown(packet)
        for number, wish in enumerate(packet.wishes):
            if number:
                yield
            reason, subscription = self._add(wish, () if identifier is None else (identifier,), extras)
            reasons.append(reason if self.version == V5 or reason < 0x80 else 0x80)
            if subscription is not None and extras.start is not None:
                past.append((wish.topic_filter, subscription))
            elif subscription is not None:
                fresh.append(subscription)
        answer = self._results(fields.SUBACK, packet.packet_id, reasons, extras.wrong or unknown)

        def granted() -> None:
            self.reply(answer)  # [MQTT-3.8.4-1], [MQTT-3.8.4-6]
            for subscription in fresh:
                self.add_work(self.broker.send_retained(subscription))

        session = self.session
        if session is None or not session.lasting:
            self.reply(answer)  # [MQTT-3.8.4-1], [MQTT-3.8.4-6]
            fresh, retained = [], fresh
        else:
            self._when_safe(granted)
            retained = []
        for key, subscription in past:
            assert extras.start is not None
            self.broker.replay_from(key, subscription, extras.start)
            yield
        for subscription in retained:
            yield from self.broker.send_retained(subscription)

    def _unknown(self, packet: Subscribe) -> str:
        """Say which of the topics asked for may not be used, if any."""
        catalog = self.broker.catalog
        if not catalog.restricts:
            return ""
        for wish in packet.wishes:
            try:
                refusal = catalog.filter_refusal(split_shared(wish.topic_filter)[1])
            except InvalidTopic:
                continue
            if refusal:
                return refusal
        return ""

    def _extras(self, packet: Subscribe) -> Extras:
        """Read what a client asks for beyond MQTT, in user properties of its SUBSCRIBE."""
        start: Position | None = None
        lossless = False
        for name, value in packet.properties.get("user_property", ()):
            if name == "pyrite-lossless":
                if value.lower() not in YES_OR_NO:
                    return Extras(None, False, "pyrite-lossless: expected true or false")
                lossless = YES_OR_NO[value.lower()]
            elif name == "pyrite-from":
                if start is not None:
                    return Extras(None, lossless, "pyrite-from: expected once")
                if not self.broker.journal.streams:
                    return Extras(None, lossless, "there is no log to send the past from")
                if any(wish.topic_filter.startswith(SHARE_PREFIX) for wish in packet.wishes):
                    return Extras(
                        None, lossless, "pyrite-from: members of a shared subscription have no past"
                    )
                try:
                    start = parse_position(value)
                except ValueError as error:
                    return Extras(None, lossless, f"pyrite-from: {error}")
        return Extras(start, lossless, "")

    def _when_safe(self, call: Callable[[], object]) -> None:
        """Call when what the session was changed to is safe; at once if the session does not last."""
        session = self.session
        if session is None or not session.lasting:
            call()
            return

        def safe() -> None:
            if self.session is session:
                call()
                if self.backlog is not None and not self.interrupted:
                    self.broker.interrupted(self)

        self.broker.journal.after(safe)

    def _add(
        self, wish: Wish, identifiers: tuple[int, ...], extras: Extras
    ) -> tuple[int, Subscription | None]:
        """Grant or refuse one wish; return the reason, and the subscription if it wants earlier messages."""
        broker, options, session = self.broker, self.options, self.session
        assert session is not None
        if extras.wrong:
            return Reason.IMPLEMENTATION_SPECIFIC_ERROR, None
        key = wish.topic_filter
        try:
            group, topic_filter = split_shared(key)
            check_filter(topic_filter, broker.limits.max_topic_levels)
        except InvalidTopic:
            return Reason.TOPIC_FILTER_INVALID, None
        if group is not None and not options.shared_subscriptions:
            return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, None
        if not options.wildcard_subscriptions and (b"+" in topic_filter or b"#" in topic_filter):
            return Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED, None
        access, name = broker.access, topic_filter.decode()
        if access.checks_topics and not (
            access.may_subscribe(self.credentials, name)
            and (extras.start is None or access.may_pull(self.credentials, name))
        ):
            return Reason.NOT_AUTHORIZED, None
        if broker.catalog.filter_refusal(topic_filter):
            return Reason.TOPIC_FILTER_INVALID, None
        subscriptions = session.subscriptions
        if key not in subscriptions and (
            len(subscriptions) >= broker.limits.max_subscriptions_per_client
            or broker.quotas.refusal(session.account, "subscriptions")
        ):
            return Reason.QUOTA_EXCEEDED, None
        qos = min(wish.qos, options.maximum_qos)
        subscription = Subscription(
            session,
            topic_filter,
            qos,
            wish.no_local,
            wish.retain_as_published,
            wish.retain_handling,
            identifiers,
        )
        subscription.lossless = extras.lossless
        new = broker.subscribe(subscription, group, key)
        # [MQTT-3.3.1-9] to [MQTT-3.3.1-11]; a shared subscription gets no retained messages (4.8.2).
        wants = wish.retain_handling == 0 or (wish.retain_handling == 1 and new) or extras.start is not None
        wants = wants and group is None
        return qos, subscription if wants else None

    def _unsubscribe(self, packet: Unsubscribe) -> None:
        self.add_work(self._unsubscribing(packet))

    def _unsubscribing(self, packet: Unsubscribe) -> Iterator[None]:
        """Unsubscribe from one filter in each step, and answer at the end."""
        reasons: list[int] = []
        for number, key in enumerate(packet.filters):
            if number:
                yield
            assert self.session is not None
            try:
                check_filter(split_shared(key)[1], self.broker.limits.max_topic_levels)
            except InvalidTopic:
                reasons.append(Reason.TOPIC_FILTER_INVALID)
            else:
                existed = self.broker.unsubscribe(self.session, key)
                reasons.append(Reason.SUCCESS if existed else Reason.NO_SUBSCRIPTION_EXISTED)
        answer = self._results(fields.UNSUBACK, packet.packet_id, reasons)
        self._when_safe(lambda: self.reply(answer))  # [MQTT-3.10.4-4], -5

    def _results(self, kind: int, packet_id: int, reasons: list[int], text: str = "") -> Suback:
        worst = max(reasons)
        if worst < 0x80 or not self.problem_information:  # [MQTT-3.1.2-29]
            return Suback(kind, packet_id, reasons)
        return Suback(kind, packet_id, reasons, {"reason_string": text or describe(worst)})

    def _acknowledged(self, packet: Ack) -> None:
        """Take an acknowledgement that says more than an id."""
        assert self.session is not None
        failed = packet.reason >= 0x80
        if failed and packet.type in (fields.PUBACK, fields.PUBREC):
            self.session.refuse(packet.packet_id)
            return
        first = packet.type << 4 | (2 if packet.type == fields.PUBREL else 0)
        publishing.acknowledged(self, first, bytes((first, 2)) + packet.packet_id.to_bytes(2, "big"))

    def _disconnected(self, packet: Disconnect) -> None:
        session = self.session
        expiry = packet.properties.get("session_expiry")
        if session is not None and expiry is not None:
            if expiry and session.expiry == 0:
                raise violation("a session expiry where CONNECT had none")  # 3.14.2.2.2
            self.broker.set_expiry(session, min(expiry, self.options.max_session_expiry))
        if "server_reference" in packet.properties:
            raise violation("a server reference from a client")
        self.why = "the client disconnected"
        self.leave(send_will=packet.reason != Reason.SUCCESS)  # [MQTT-3.14.4-3]
        self.close()

    def rights_changed(self) -> None:
        """Take the next message for what it is: the shape of the last says whether topics are checked."""
        self.shape = None

    # Packets out

    def reply(self, packet: Packet) -> bool:
        """Send a packet, without its reason string if it is too large for the client with it.

        Return False, having sent nothing, if it is too large even so.
        """
        data = self.encoded(packet)
        if not data:
            return False
        self.write(data)
        self.broker.figures.packets_sent += 1
        return True

    def encoded(self, packet: Packet) -> bytes:
        """Return a packet's bytes as `reply` would send them; none if it is too large for the client."""
        data = encode(packet, self.version)
        if len(data) > self.max_packet and hasattr(packet, "properties"):
            packet.properties.pop("reason_string", None)  # [MQTT-3.2.2-19] and its like
            data = encode(packet, self.version)
        return data if len(data) <= self.max_packet else b""

    def answer(self, acks: bytes, first: int) -> None:
        """Answer a run of acknowledgements with those of the next step: only the first byte differs."""
        answers = bytearray(acks)
        answers[0::4] = bytes((first,)) * (len(acks) // 4)
        self.write(answers)
        self.broker.figures.packets_sent += len(acks) // 4

    # The end

    def fail(self, reason: Reason, text: str) -> None:
        """End the connection for a fault: say why, if the client's version can be told, and close."""
        if self.state is CLOSED:
            return
        self.why = text
        before = self.state
        self.leave(send_will=True)
        if before is CONNECTED:
            if self.version == V5:
                self.reply(Disconnect(reason, {"reason_string": text}))  # [MQTT-4.13.1-1]
        else:
            self.refuse(reason, text)
            return
        self.close()

    def refuse(self, reason: Reason, text: str) -> None:
        """Turn away a client that is not connected yet."""
        self.tell_refused(reason, text or describe(reason))
        if self.version == V5:
            values: dict[str, object] = {"reason_string": text} if text else {}
            if reason in (Reason.QUOTA_EXCEEDED, Reason.SERVER_BUSY) and self.options.server_reference:
                reason = Reason.USE_ANOTHER_SERVER
                values["server_reference"] = self.options.server_reference
            self.reply(Connack(reason, False, values))
        else:
            code = return_code(reason)
            if code is not None:
                self.reply(Connack(code))  # [MQTT-3.2.2-6]
        self.close()

    def displaced(self) -> None:
        """Make way for another connection of the same client [MQTT-3.1.4-3]."""
        self.why = "taken over by another connection"
        if self.version == V5:
            self.reply(Disconnect(Reason.SESSION_TAKEN_OVER, {}))
        self.session = None  # what is acknowledged later is for the other to hear
        self.close()

    def ended(self, reason: int) -> None:
        """End the connection for a reason of the broker's own."""
        self.why = describe(reason)
        if self.state is CONNECTED and self.version == V5:
            values: dict[str, object] = {}
            if reason == Reason.SERVER_SHUTTING_DOWN and self.options.server_reference:
                values["server_reference"] = self.options.server_reference
            self.reply(Disconnect(reason, values))
        # The wills of all would go out to no one when the broker stops.
        self.leave(send_will=reason != Reason.SERVER_SHUTTING_DOWN)
        self.close()

    def due(self) -> None:
        """Do what time asks for: give up a client that is silent, or does not let itself be closed."""
        broker = self.broker
        if self.state is CLOSED:
            self.transport.abort()
        elif self.state is not CONNECTED and self.interrupted:
            self.refuse(Reason.SERVER_BUSY, "the log-in could not be checked in time")
        elif self.state is not CONNECTED:
            self.tell_refused(0, "it did not say who it is in time")
            self.close()
        elif self.keep_alive:
            if self.is_throttled:
                self.seen_at = broker.now
            silent_since = self.seen_at + self.keep_alive
            if silent_since <= broker.now:
                self.fail(Reason.KEEP_ALIVE_TIMEOUT, "nothing came within the keep-alive")  # [MQTT-3.1.2-22]
            else:
                broker.timers.set(self, silent_since)

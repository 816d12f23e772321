"""The MQTT protocol for one client. No I/O: a listener feeds it received bytes.

`feed` splits bytes into packets. Runs of PUBLISH go to publishing.py and runs of acknowledgements to
acknowledging.py; other packets are decoded and handled one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pyrite.broker.access import Exchange
from pyrite.broker.inflight import WrongAcknowledgement
from pyrite.broker.link import Transport
from pyrite.broker.timers import TURN
from pyrite.protocols.mqtt import (
    acknowledging,
    acks,
    batching,
    fields,
    handshake,
    publishing,
    shapes,
    subscribing,
)
from pyrite.protocols.mqtt.delivery import FORM_V3, Delivery
from pyrite.protocols.mqtt.gathering import MAX_GATHERED, Gathering
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
    Subscribe,
    Unsubscribe,
    decode,
    encode,
)
from pyrite.protocols.mqtt.reasons import ProtocolError, Reason, describe, malformed, return_code, violation
from pyrite.protocols.states import AUTHENTICATING, CLOSED, CONNECTED, WAITING

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.protocols.mqtt.merging import Merger

logger = logging.getLogger(__name__)

Input = TypeVar("Input")

MAX_PACKET = 5 + fields.MAX_REMAINING_LENGTH
MAX_CONTROL_PACKET = 1024 * 1024
"""Bytes of a packet other than PUBLISH, which is decoded in one go."""
MAX_READ = 1024 * 1024
"""Bytes that may be gathered."""
MAX_MERGED_READ = 4 * 1024
"""Bytes of a read whose packets are merged with those of others: a larger read is a batch of its own."""
MAX_RIGHTS = 100_000
"""Topics on which clients are known to be allowed to publish; the connections share this number evenly."""
MIN_RIGHTS = 16
MIN_KEEP_ALIVE_BYTES = 1_000
"""Bytes of one read within an incomplete packet that restart the keep-alive. Smaller reads do not, so that a
client cannot hold its connection open by sending a packet byte by byte."""


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
        "rights",
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
        """The CONNECT of a client that is not accepted yet; None afterwards."""
        self.exchange: Exchange | None = None
        """The enhanced authentication in progress, if any."""
        self.method: str | None = None
        """The authentication method of the CONNECT."""
        self.problem_information = True
        self.aliases_in: dict[int, bytes] | None = None
        self.shape: shapes.Shape | None = None
        """The shape of the last PUBLISH."""
        self.rights: set[bytes] | None = None
        """Topics on which the client may publish, as far as they were asked for."""
        self.keep_alive = 0.0
        """Seconds of silence after which the connection is closed; 0 for never."""
        broker.timers.set(self, broker.now + broker.limits.connect_timeout)

    # Bytes in

    def feed(self, data: bytes) -> None:
        """Handle bytes from the client. Never raises."""
        self.broker.figures.bytes_received += len(data)
        self.guarded(self._feed, data)

    def guarded(self, handle: Callable[[Input], object], what: Input) -> None:
        """Handle something from the client, and end the connection after an error."""
        try:
            handle(what)
        except ProtocolError as error:
            self.fail(error.reason, str(error))
        except WrongAcknowledgement as wrong:
            self.fail(Reason.PROTOCOL_ERROR, str(wrong))
        except Exception:
            # A bug in the broker ends this connection only.
            logger.exception("client %r: internal error", self.credentials.client_id)
            self.fail(Reason.UNSPECIFIED_ERROR, "internal error")

    def is_abandoned(self) -> bool:
        """Return whether the client has closed the connection."""
        return self.transport.input_has_ended()

    def joins(self, merger: Merger, data: bytes) -> int:
        """Add PUBLISH packets to a merger if nothing is ahead of them; return how many bytes it took. HOT."""
        if (
            len(data) > MAX_MERGED_READ
            or self.state is not CONNECTED
            or data[0] & 0xFD != 0x30  # PUBLISH with QoS 0 or 1, neither retained nor sent again
            or self.received is not None
            or self.backlog is not None
            or self.interrupted
            or self.broker.journal.full
            or not self._may_gather(data[0])
        ):
            return 0
        taken = merger.add(self, data)
        if taken:
            self.seen_at = self.broker.now
        return taken

    def _may_gather(self, first: int) -> bool:
        """Return whether packets with this first byte need no decision that gathering does not make."""
        broker, options = self.broker, self.options
        if self.meter is not None or broker.fan_outs.is_full or (first >> 1 & 3) > options.maximum_qos:
            return False
        if not first & 1:
            return True
        session = self.session
        if session is None or not options.retain_available:
            return False
        return broker.retained.has_room(session.account, MAX_GATHERED, MAX_READ)

    def known_rights(self) -> set[bytes]:
        """Return the topics on which the client is known to be allowed to publish."""
        rights = self.rights
        if rights is None or len(rights) > max(MIN_RIGHTS, MAX_RIGHTS // len(self.broker.sessions.by_id)):
            rights = set()
            if self.broker.policy.is_lasting:
                self.rights = rights
        return rights

    def may_publish(self, topic: bytes, rights: set[bytes]) -> bool:
        """Return whether the client may publish on a topic; note it down if so."""
        try:
            if self.broker.policy.refuse_publish(self.credentials, topic) is not None:
                return False
        except Exception:  # of a plug-in; it is raised again when the packet is handled by itself
            return False
        if self.rights is rights:
            rights.add(topic)
        return True

    def _feed(self, data: bytes) -> None:
        """Split `data` into packets and handle them. HOT."""
        until = 0.0
        if self.backlog is not None and not self.interrupted:
            until = self.broker.clock() + TURN
            if not self.work_off(until):
                self.interrupted = True
                self.broker.turns.add(self)
        if self.received is None and self.interrupted:
            self.keep(data, 0, 0)
            return
        if self.received is not None:
            self.received += data
            self.missing -= len(data)
            if self.missing > 0 or self.interrupted:
                if len(data) >= MIN_KEEP_ALIVE_BYTES:
                    self.seen_at = self.broker.now
                return
            data = bytes(self.received)
            self.received = None
        at, end = 0, len(data)
        broker = self.broker
        self.seen_at = broker.now
        clock, fan_outs = broker.clock, broker.fan_outs
        is_first = True  # most reads bring one packet or run, and the clock need not be read
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
                    stop = batching.run_end(self, shape, data, at)
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
                if broker.journal.full:
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
                            raise malformed("the remaining length is not minimally encoded")  # [MQTT-1.5.5-1]
                        break
                else:
                    if shift >= 28:
                        raise malformed("the remaining length is longer than four bytes")
                    break
            stop = body + length
            size = stop - at
            if (
                size > MAX_CONTROL_PACKET
                or size > broker.limits.max_packet_size
                or self.state is not CONNECTED
            ):
                self._check_size(first, size)
            if stop > end:
                self.keep(data, at, stop - end)
                return
            if first >> 4 == fields.PUBLISH:
                if self.meter is not None and self.meter.is_spent:
                    self.wait_for_budget(data, at)
                    return
                gathering = None
                if (
                    first & 8 == 0
                    and first & 6 != 6
                    and self._may_gather(first)
                    and not shapes.begins_run(data, at, body, stop)
                ):
                    gathering = Gathering(self.form | first & 7)
                    stop = gathering.add(self, data, at)
                if gathering is not None and stop > at:
                    publishing.publish_gathered(gathering)
                else:
                    stop = self._publish_run(data, at, body, body + length)
                    if stop == at:
                        return
            elif length == 2 and first in (0x40, 0x50, 0x62, 0x70):
                count = acks.ack_run(data, at)
                self.broker.figures.packets_received += count
                stop = at + 4 * count
                acknowledging.acknowledge_run(self, first, data[at:stop])
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
            if broker.journal.full:
                self.wait_for_room(data, at)
                return
        if at < end:
            self.keep(data, at, 1)

    def _publish_run(self, data: bytes, at: int, body: int, stop: int) -> int:
        """Publish the run of packets that begins at `at`. Return its end; `at` if the client has to wait."""
        shape = self.shape = shapes.read_shape(self, data, at, body, stop)
        run = batching.run_end(self, shape, data, at)
        fan_outs = self.broker.fan_outs
        if fan_outs.is_full and fan_outs.has_to_wait(shape.topic, (run - at) // shape.size):
            self.wait_for_fan_outs(data, at)
            return at
        if self.meter is not None:
            run = at + shape.size * self.meter.grant((run - at) // shape.size, shape.size)
        publishing.publish(self, shape, data[at:run])
        return run

    def _check_size(self, first: int, size: int) -> None:
        """Raise ProtocolError if a packet, of which only the header has arrived, is too large."""
        limits = self.broker.limits
        if self.state is not CONNECTED and size > limits.before_login:
            raise ProtocolError(
                Reason.PACKET_TOO_LARGE, f"the packet exceeds {limits.before_login} bytes before the log-in"
            )
        if size > limits.max_packet_size:
            raise ProtocolError(Reason.PACKET_TOO_LARGE, "the packet exceeds the maximum packet size")
        if size > MAX_CONTROL_PACKET and first >> 4 != fields.PUBLISH:
            raise ProtocolError(
                Reason.QUOTA_EXCEEDED,
                f"a packet other than PUBLISH exceeds {MAX_CONTROL_PACKET} bytes",
            )

    def _may_start(self, first: int) -> bool:
        """Return whether a packet with this first byte is allowed in the present state."""
        if self.state is CLOSED:
            return False
        if self.state is WAITING and first >> 4 != fields.CONNECT:
            self.close()  # [MQTT-3.1.0-1]; a client that does not speak MQTT gets no answer
            return False
        if self.state is AUTHENTICATING and first >> 4 not in (fields.AUTH, fields.DISCONNECT):
            raise violation("only AUTH and DISCONNECT are allowed before CONNACK")  # [MQTT-3.1.2-30]
        return True

    # Packets in

    def _handle(self, first: int, body: bytes) -> None:
        if first >> 4 == fields.CONNECT and self.state is not WAITING:
            raise violation("second CONNECT on a connection")  # [MQTT-3.1.0-2]
        if self.state is WAITING:
            handshake.peek_version(self, body)
        packet = decode(first, body, self.version)
        match packet:
            case Ping(fields.PINGREQ):
                self.write(b"\xd0\x00")  # [MQTT-3.12.4-1]
                self.broker.figures.packets_sent += 1
            case Subscribe():
                subscribing.subscribe(self, packet)
            case Unsubscribe():
                subscribing.unsubscribe(self, packet)
            case Ack():
                acknowledging.acknowledge_one(self, packet)
            case Disconnect():
                self._disconnected(packet)
            case Connect():
                handshake.connect(self, packet)
            case Auth():
                handshake.auth(self, packet)
            case _:
                raise violation("only servers send this packet type")

    def _disconnected(self, packet: Disconnect) -> None:
        session = self.session
        expiry = packet.properties.get("session_expiry")
        if session is not None and expiry is not None:
            if expiry and session.expiry == 0:
                raise violation("DISCONNECT has a session expiry, but CONNECT had none")  # 3.14.2.2.2
            self.broker.sessions.set_expiry(session, min(expiry, self.options.max_session_expiry))
        if "server_reference" in packet.properties:
            raise violation("DISCONNECT from a client has a server reference")
        self.why = "the client disconnected"
        self.leave(send_will=packet.reason != Reason.SUCCESS)  # [MQTT-3.14.4-3]
        self.close()

    def rights_changed(self) -> None:
        """Forget what caches whether the client may publish on a topic."""
        self.shape = None
        self.rights = None

    # Packets out

    def reply(self, packet: Packet) -> bool:
        """Send a packet, without its reason string if the packet is too large for the client otherwise.

        Return False, and send nothing, if it is still too large.
        """
        data = self.encoded(packet)
        if not data:
            return False
        self.write(data)
        self.broker.figures.packets_sent += 1
        return True

    def encoded(self, packet: Packet) -> bytes:
        """Return the bytes that `reply` sends; none if the packet is too large for the client."""
        data = encode(packet, self.version)
        if len(data) > self.max_packet and hasattr(packet, "properties"):
            packet.properties.pop("reason_string", None)  # [MQTT-3.2.2-19], and the same for other packets
            data = encode(packet, self.version)
        return data if len(data) <= self.max_packet else b""

    def answer(self, acks: bytes, first: int) -> None:
        """Answer a run of acknowledgements with the next step of QoS 2: only the first byte differs."""
        answers = bytearray(acks)
        answers[0::4] = bytes((first,)) * (len(acks) // 4)
        self.write(answers)
        self.broker.figures.packets_sent += len(acks) // 4

    # The end

    def fail(self, reason: Reason, text: str) -> None:
        """Close the connection because of an error, which is reported if the client's version allows it."""
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
        """Refuse a client that is not connected yet."""
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
        """Close: another connection of the same client has taken over [MQTT-3.1.4-3]."""
        self.why = "taken over by another connection"
        if self.version == V5:
            self.reply(Disconnect(Reason.SESSION_TAKEN_OVER, {}))
        self.session = None  # later acknowledgements belong to the other connection
        self.close()

    def ended(self, reason: int) -> None:
        """Close the connection on the broker's behalf."""
        self.why = describe(reason)
        if self.state is CONNECTED and self.version == V5:
            values: dict[str, object] = {}
            if reason == Reason.SERVER_SHUTTING_DOWN and self.options.server_reference:
                values["server_reference"] = self.options.server_reference
            self.reply(Disconnect(reason, values))
        # When the broker stops, no subscriber is left to receive the wills.
        self.leave(send_will=reason != Reason.SERVER_SHUTTING_DOWN)
        self.close()

    def due(self) -> None:
        """Close the connection of a silent client, or abort one that does not close in time."""
        broker = self.broker
        if self.state is CLOSED:
            self.transport.abort()
        elif self.state is not CONNECTED and self.interrupted:
            self.refuse(Reason.SERVER_BUSY, "the log-in could not be checked in time")
        elif self.state is not CONNECTED:
            self.tell_refused(0, "no CONNECT within the time limit")
            self.close()
        elif self.keep_alive:
            if self.is_throttled:
                self.seen_at = broker.now
            silent_since = self.seen_at + self.keep_alive
            if silent_since <= broker.now:
                self.fail(Reason.KEEP_ALIVE_TIMEOUT, "keep-alive timeout")  # [MQTT-3.1.2-22]
            else:
                broker.timers.set(self, silent_since)

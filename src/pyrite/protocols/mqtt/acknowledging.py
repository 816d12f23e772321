"""Acknowledgements from the client: PUBACK, PUBREC and PUBCOMP of deliveries, PUBREL of its own messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.acks import unpack_ids
from pyrite.protocols.mqtt.packets import Ack
from pyrite.protocols.mqtt.reasons import Reason, violation

if TYPE_CHECKING:
    from pyrite.protocols.mqtt.connection import Connection

_UNKNOWN = Reason.PACKET_IDENTIFIER_NOT_FOUND


def acknowledge_run(connection: Connection, first: int, acks: bytes) -> None:
    """Handle a run of acknowledgements of one type, each of 4 bytes; answer in one write. HOT."""
    session = connection.session
    assert session is not None
    ids = unpack_ids(acks[2::4], acks[3::4])
    if 0 in ids:
        raise violation("the packet identifier is 0")  # [MQTT-2.2.1-3]
    if first == 0x40:
        session.acknowledge(ids)
    elif first == 0x70:
        session.complete(ids)
    elif first == 0x50:
        if session.received(ids):
            connection.when_safe(lambda: connection.answer(acks, 0x62))
        else:  # [MQTT-4.3.3-4]
            _answer(
                connection,
                fields.PUBREL,
                [(message_id, session.received((message_id,))) for message_id in ids],
            )
    else:
        incoming = session.incoming
        if incoming is not None and incoming.issuperset(ids):
            incoming.difference_update(ids)  # [MQTT-4.3.3-12]
            if session.lasting:
                connection.broker.journal.state.save_incoming(session)
            connection.when_safe(lambda: connection.answer(acks, 0x70))
        else:
            known: list[tuple[int, bool]] = []
            for message_id in ids:
                known.append((message_id, incoming is not None and message_id in incoming))
                if incoming is not None:
                    incoming.discard(message_id)
            if session.lasting and any(was_known for _, was_known in known):
                connection.broker.journal.state.save_incoming(session)
            _answer(connection, fields.PUBCOMP, known)


def _answer(connection: Connection, kind: int, known: list[tuple[int, bool]]) -> None:
    """Answer acknowledgements once their effect is committed. `known` tells for each id whether it was known.

    Unknown ids are answered with a reason code in MQTT 5, and not at all in MQTT 3.1.1.
    """
    good = connection.encoded(Ack(kind, 1, 0))[:2]
    bad = connection.encoded(Ack(kind, 1, _UNKNOWN))
    head, tail = bad[:2], bad[4:]
    answers = b"".join(
        [
            (good if was_known else head) + message_id.to_bytes(2, "big") + (b"" if was_known else tail)
            for message_id, was_known in known
            if was_known or bad
        ]
    )

    def answer() -> None:
        connection.write(answers)
        connection.broker.figures.packets_sent += len(known)

    if answers:
        connection.when_safe(answer)


def acknowledge_one(connection: Connection, packet: Ack) -> None:
    """Handle an acknowledgement with a reason code or properties."""
    session = connection.session
    assert session is not None
    failed = packet.reason >= 0x80
    if failed and packet.type in (fields.PUBACK, fields.PUBREC):
        session.refuse(packet.packet_id)
        return
    first = packet.type << 4 | (2 if packet.type == fields.PUBREL else 0)
    acknowledge_run(connection, first, bytes((first, 2)) + packet.packet_id.to_bytes(2, "big"))

"""Check batches of PUBLISH packets, publish them, and acknowledge them once they are committed. HOT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyrite.broker.journal import Done
from pyrite.broker.message import Batch, MixedBatch
from pyrite.broker.routes import Route
from pyrite.protocols.mqtt.acks import unpack_ids
from pyrite.protocols.mqtt.delivery import FORM_V5
from pyrite.protocols.mqtt.reasons import ProtocolError, Reason, violation
from pyrite.protocols.mqtt.replies import Reply
from pyrite.protocols.mqtt.requests import REQUESTS, Request
from pyrite.protocols.mqtt.shapes import Shape

if TYPE_CHECKING:
    from pyrite.protocols.mqtt.connection import Connection
    from pyrite.protocols.mqtt.gathering import Gathering


def publish_gathered(gathering: Gathering) -> None:
    """Publish what was gathered from one connection, and acknowledge it in one write."""
    connection = gathering.connections[0]
    batch = gathering.batch()
    if batch.retain and connection.session is not None:
        owner = connection.session.account
        if isinstance(batch, MixedBatch):
            batch.owner = owner
        else:
            batch = batch.owned_by(owner)
    figures = connection.broker.figures
    figures.publish_received += batch.count
    figures.publish_bytes_received += len(batch.data)
    if batch.qos == 0:
        _publish_batch(connection, batch, gathering.routes)
        return
    high, low = gathering.ids(batch.data)
    _publish_acknowledged(connection, batch, gathering.routes, high, low, 0)


def publish(connection: Connection, shape: Shape, packets: bytes) -> None:
    """Publish a run of packets of one shape as one batch, and acknowledge it in one write."""
    broker = connection.broker
    size = shape.size
    count = len(packets) // size
    qos, at = shape.qos, shape.id_at
    if shape.plain:  # by far the most common case
        figures = broker.figures
        figures.publish_received += count
        figures.publish_bytes_received += len(packets)
        origin = connection.credentials.client_id
        batch = Batch(
            shape.topic,
            packets,
            qos,
            False,
            None,
            None,
            origin,
            count,
            size,
            shape.payload_at,
            shape.form,
            at,
        )
        if qos:
            _publish_acknowledged(connection, batch, None, packets[at::size], packets[at + 1 :: size], 0)
        else:
            broker.publishing.publish(batch)
        return
    properties = shape.properties
    refused = 0
    if properties is not None and properties.payload_format and connection.options.check_payload_format:
        refused = _wrong_payload(packets[shape.payload_at :])
    if shape.topic.startswith(REQUESTS):
        _request(connection, shape, packets, refused)
        return
    text = ""
    refusal = broker.policy.refuse_publish(connection.credentials, shape.topic, qos)
    if refusal is not None and refusal.is_unauthorized:
        refused = refused or Reason.NOT_AUTHORIZED
    elif refusal is not None and not refused:
        refused, text = Reason.TOPIC_NAME_INVALID, refusal.text
        if not shape.qos or connection.form != FORM_V5:  # no acknowledgement can carry the refusal
            raise ProtocolError(Reason.TOPIC_NAME_INVALID, text)
    figures = broker.figures
    figures.publish_received += count
    figures.publish_bytes_received += len(packets)
    expires_at = None
    if properties is not None and properties.message_expiry is not None:
        expires_at = broker.now + properties.message_expiry
    batch = Batch(
        shape.topic,
        packets,
        shape.qos,
        shape.retain,
        properties,
        expires_at,
        connection.credentials.client_id,
        count,
        size,
        shape.payload_at,
        shape.form,
        shape.id_at,
    )
    if shape.retain and not refused and connection.session is not None:
        batch = batch.owned_by(connection.session.account)
        fault = broker.retained.fault(batch)
        # Only QoS 1 and 2 in MQTT 5 can be refused; otherwise the message is delivered but not retained.
        if fault is not None and shape.qos and connection.form == FORM_V5:
            figures.quota_refused += count * fault.quota
            refused, text = Reason.QUOTA_EXCEEDED, fault.text
    if qos == 0:
        if refused:
            figures.messages_dropped += count
        else:
            _publish_batch(connection, batch)
        return
    _publish_acknowledged(connection, batch, None, packets[at::size], packets[at + 1 :: size], refused, text)


def _request(connection: Connection, shape: Shape, packet: bytes, refused: int) -> None:
    """Acknowledge and handle a request, which is neither delivered, nor logged, nor retained.

    The handler of the request checks the client's rights. A duplicate is not handled again.
    """
    figures = connection.broker.figures
    figures.publish_received += 1
    figures.publish_bytes_received += len(packet)
    high, low = packet[shape.id_at : shape.id_at + 1], packet[shape.id_at + 1 : shape.id_at + 2]
    is_new = not packet[0] & 0x08
    if shape.qos:
        ids = unpack_ids(high, low)
        _, error = _allowed(connection, shape.qos, ids, refused)
        if error is not None:
            raise error
        session = connection.session
        if shape.qos == 2 and not refused and session is not None:
            if session.incoming is None:
                session.incoming = set()
            is_new = ids[0] not in session.incoming
            session.incoming.add(ids[0])
            if session.lasting:
                connection.broker.journal.state.save_incoming(session)
        reply = Reply(connection, shape.qos, ids, high, low)
        connection.when_safe(lambda: reply.send(refused))
    if is_new and not refused:
        Request(connection, shape.qos, shape.properties).handle(shape.topic, packet[shape.payload_at :])


def _publish_acknowledged(
    connection: Connection,
    batch: Batch,
    routes: Sequence[Route] | None,
    high: bytes,
    low: bytes,
    refused: int,
    text: str = "",
) -> None:
    """Publish a batch with QoS 1 or 2 and acknowledge it, or refuse it with a reason and a text.

    `high` and `low` are the bytes of its packet ids.
    """
    broker = connection.broker
    ids = unpack_ids(high, low)
    if batch.qos == 2 or 0 in ids:
        allowed, error = _allowed(connection, batch.qos, ids, refused)
    else:
        allowed, error = len(ids), None
    if error is not None:
        if allowed:  # messages before the fault are good
            before = batch.part(0, allowed)
            _publish_acknowledged(connection, before, routes, high[:allowed], low[:allowed], refused, text)
        raise error
    reply = Reply(connection, batch.qos, ids, high, low)
    if refused:  # a refused message's id is free again at once [MQTT-4.3.3-9]
        broker.figures.messages_dropped += batch.count
        broker.journal.in_turn(lambda: reply.send(refused, text))
        return
    if batch.qos == 1:
        _publish_batch(connection, batch, routes, reply.done)
        return
    session = connection.session
    assert session is not None
    fresh = _first_time(connection, batch, ids)
    reply.left = len(fresh)
    if not fresh:  # all are duplicates, which may not be committed yet
        broker.journal.in_turn(lambda: reply.send(0) if (session.incoming or set()).issuperset(ids) else None)
        return
    if session.lasting:
        broker.journal.state.save_incoming(session)
    reply.fresh = [message_id for _, part_ids in fresh for message_id in part_ids]
    for part, part_ids in fresh:
        _publish_batch(
            connection,
            part,
            routes if part is batch else None,
            reply.done,
            part_ids if session.lasting else None,
        )


def _publish_batch(
    connection: Connection,
    batch: Batch,
    routes: Sequence[Route] | None = None,
    done: Done | None = None,
    packet_ids: Sequence[int] | None = None,
) -> None:
    """Publish a batch, charged to the client's account if it has a rate quota. `routes` are known ones."""
    publishing = connection.broker.publishing
    if connection.meter is not None:
        publishing.publish_for(connection.meter, batch, None, done, packet_ids)
    elif isinstance(batch, MixedBatch):
        if routes is None or len(routes) != batch.count:
            routes = [connection.broker.subscriptions.route(topic) for topic in batch.topics]
        publishing.publish_mixed(batch, routes, done, packet_ids)
    else:
        publishing.publish(batch, None if routes is None else routes[0], done, packet_ids)


def _wrong_payload(payload: bytes) -> int:
    """Return a reason code if a payload declared as UTF-8 is not valid UTF-8, else 0."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return Reason.PAYLOAD_FORMAT_INVALID
    return 0


def _allowed(
    connection: Connection, qos: int, ids: tuple[int, ...], refused: int
) -> tuple[int, ProtocolError | None]:
    """Return how many messages, from the first, have acceptable ids, and the error of the next message."""
    if 0 in ids:
        return ids.index(0), violation("the packet identifier is 0")  # [MQTT-2.2.1-3]
    if qos == 2 and not refused and connection.session is not None:
        incoming = connection.session.incoming or set()
        most = connection.broker.limits.receive_maximum
        if len(incoming) + len(ids) > most and len(incoming) + len(fresh := set(ids) - incoming) > most:
            fresh.clear()
            for number, message_id in enumerate(ids):
                if message_id not in incoming:
                    fresh.add(message_id)
                if len(incoming) + len(fresh) > most:
                    return number, ProtocolError(  # [MQTT-3.3.4-7]
                        Reason.RECEIVE_MAXIMUM_EXCEEDED, "too many unacknowledged messages"
                    )
    return len(ids), None


def _first_time(
    connection: Connection, batch: Batch, ids: tuple[int, ...]
) -> list[tuple[Batch, Sequence[int]]]:
    """Record the ids of QoS 2 messages, and return the messages that are not duplicates [MQTT-4.3.3-10]."""
    session = connection.session
    assert session is not None
    if session.incoming is None:
        session.incoming = set()
    incoming = session.incoming
    unique = set(ids)
    if incoming.isdisjoint(unique) and len(unique) == len(ids):
        incoming |= unique
        return [(batch, ids)]
    fresh: list[int] = []
    for index, message_id in enumerate(ids):
        if message_id not in incoming:
            incoming.add(message_id)
            fresh.append(index)
    return [(batch.only(fresh), [ids[index] for index in fresh])] if fresh else []

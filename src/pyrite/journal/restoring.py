"""Restoring the broker's state at the start, from the database and the end of the log."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pyrite.broker import deliveries
from pyrite.broker.consumers import Consumer
from pyrite.broker.followers import Replay
from pyrite.broker.journal import Stream
from pyrite.broker.message import AbsentBatch, Batch, Properties
from pyrite.broker.pending import BLOCK, Pending, Place
from pyrite.broker.session import Session
from pyrite.broker.shared_group import SharedGroup
from pyrite.broker.subscriptions import Subscription
from pyrite.journal.decoding import batches_in
from pyrite.journal.sink_state import SinkState
from pyrite.journal.state import Kept, KeptSession, State
from pyrite.journal.tables import OWNER
from pyrite.topics.filters import split_shared

if TYPE_CHECKING:
    from pyrite.broker.accounts import Account
    from pyrite.broker.core import Broker
    from pyrite.journal.disk import DiskJournal

_BLOCK = struct.Struct(">QQ")
"""Kinds of rows of accounts: the account a session counts for, and the bytes an account has stored."""


def restore(journal: DiskJournal, broker: Broker, state: State) -> list[str]:
    """Restore the stored state into a new broker; return the damage that was found."""
    _Restorer(journal, broker).restore(state.load())
    return state.damages


def restore_shared(journal: DiskJournal, broker: Broker, state: State) -> None:
    """Restore what belongs to no session and no consumer: retained messages, topics, sinks and accounts."""
    kept = state.load()
    restorer = _Restorer(journal, broker)
    restorer.accounts(kept)
    restorer.shared(kept)
    for name, consumer in kept.consumers:
        restorer.consumer(name, consumer)


def restore_session(journal: DiskJournal, broker: Broker, kept: KeptSession) -> Session | None:
    """Restore one session with everything that belongs to it; None if there is none."""
    return _Restorer(journal, broker).one_session(kept)


def restore_consumer(journal: DiskJournal, broker: Broker, name: str, state: dict[str, Any]) -> Consumer:
    """Restore one consumer, or move its cursor; what is pending of it is not restored."""
    restorer = _Restorer(journal, broker)
    consumer = broker.consumers.get(name)
    if consumer is None:
        return restorer.consumer(name, state)
    consumer.positions = restorer.positions(state["positions"])
    consumer.pending = Pending()
    return consumer


class _Restorer:
    def __init__(self, journal: DiskJournal, broker: Broker) -> None:
        self._journal = journal
        self._broker = broker
        self._by_number = {stream.number: stream for stream in journal.streams}
        self._wall = journal.wall()
        self._owners: dict[str, str] = {}
        """By client id, the account that the session counts for."""
        self._complete: dict[str, dict[int, int]] = {}
        """By account and stream number, the offset up to which the account's stored bytes are known."""

    def restore(self, kept: Kept) -> None:
        broker = self._broker
        self.accounts(kept)
        sessions: dict[str, Session] = {}
        for client_id, expiry, expires_at in kept.sessions:
            sessions[client_id] = self._session(client_id, expiry, expires_at)
        steps: dict[str, bytearray] = {}
        for client_id, written in kept.deliveries:
            steps.setdefault(client_id, bytearray()).extend(written)
        for client_id, session in sessions.items():
            self._deliveries(session, bytes(steps.get(client_id, b"")))
        groups: dict[SharedGroup, None] = {}
        for client_id, key, options in kept.subscriptions:
            if client_id in sessions:
                group = self._subscription(sessions[client_id], key, options)
                if group is not None:
                    groups[group] = None
        for client_id, ids in kept.incoming:
            if client_id in sessions:
                sessions[client_id].incoming = set(ids)
        self.shared(kept)
        owners = {*steps, *(one for one, *_ in kept.subscriptions), *(one for one, _ in kept.incoming)}
        for client_id in owners - sessions.keys():  # leftovers of a lost session must not become another's
            self._journal.state.drop_remains(client_id)
        states = {(name, topic_filter): state for name, topic_filter, state in kept.groups}
        for group in groups:
            self._group(group, states.get((group.name, group.topic_filter)))
        for name, consumer in kept.consumers:
            self.consumer(name, consumer)
        for name, block, bits in kept.pending:
            self._pending(name, block, bits)
        for stream, applied in self._journal.applied.items():
            if applied < stream.routed:
                self._redo(stream, applied)
        for client_id in self._owners.keys() - sessions.keys():  # its session ended with the previous broker
            self._journal.state.drop_owner_of(client_id)
        for session in sessions.values():
            broker.sessions.restored(session)

    def accounts(self, kept: Kept) -> None:
        """Restore which accounts sessions count for, and what accounts have stored in the log."""
        for kind, name, value in kept.accounts:
            if kind == OWNER:
                self._owners[name] = value
            else:
                self._stored(name, json.loads(value))

    def shared(self, kept: Kept) -> None:
        """Restore what belongs to no session and no consumer."""
        for topic, message, payload in kept.retained:
            self._retained(topic, message, payload)
        for topic in kept.topics:
            self._broker.catalog.created[topic] = True
        for name, sink in kept.sinks:
            self._journal.sinks[name] = SinkState.load(name, sink)

    def one_session(self, kept: KeptSession) -> Session | None:
        """Restore one session."""
        if kept.session is None:
            return None
        broker = self._broker
        client_id, expiry, expires_at = kept.session
        if kept.owner is not None:
            self._owners[client_id] = kept.owner
        session = self._session(client_id, expiry, expires_at)
        self._deliveries(session, kept.steps)
        for key, options in kept.subscriptions:
            self._subscription(session, key, options)
        session.incoming = set(kept.incoming)
        broker.sessions.restored(session)
        return session

    def _session(self, client_id: str, expiry: int, expires_at: float | None) -> Session:
        broker = self._broker
        session = broker.sessions.restore(client_id, expiry)
        broker.quotas.own(session, broker.quotas.restored(self._owners.get(client_id)))
        if expires_at is not None:
            session.expires_at = broker.now + expires_at - self._wall
        return session

    def _stored(self, key: str, kept: dict[str, Any]) -> None:
        """Restore what an account has stored in the log."""
        account = self._broker.quotas.restored(key)
        assert account is not None
        self._complete[key] = {int(number): offset for number, offset in kept["complete"].items()}
        for number, spans in kept["spans"].items():
            if int(number) in self._by_number:
                for end, size in spans:
                    account.store(self._by_number[int(number)], end, size)

    def positions(self, numbers: dict[str, int]) -> dict[Stream, int]:
        """Return positions by stream, from positions by stream number, as text."""
        known = self._by_number
        found = {known[int(one)]: at for one, at in numbers.items() if int(one) in known}
        return {stream: min(at, stream.routed) for stream, at in found.items()}

    def _deliveries(self, session: Session, written: bytes) -> None:
        positions, flights = deliveries.play(written[: len(written) - len(written) % deliveries.SIZE])
        known = self._by_number
        session.restore(
            {
                stream: min(positions.get(stream.number, stream.routed), stream.routed)
                for stream in self._journal.streams
            },
            {
                message_id: (AbsentBatch(known[sent.stream], sent.offset, 1), sent.qos, sent.shared)
                if sent is not None and sent.stream in known
                else None  # a QoS 2 message of an unknown stream may be half received
                for message_id, sent in flights.items()
                if sent is None or sent.stream in known or sent.qos == 2
            },
        )

    def _subscription(self, session: Session, key: bytes, options: dict[str, Any]) -> SharedGroup | None:
        group_name, topic_filter = split_shared(key)
        subscription = Subscription(
            session,
            topic_filter,
            options["qos"],
            options["no_local"],
            options["retain_as_published"],
            options["retain_handling"],
            tuple(options["identifiers"]),
        )
        subscription.lossless = options["lossless"]
        subscription.latest = options.get("latest", False)  # absent in older folders
        if options["since"] is not None:
            subscription.since = self.positions(options["since"])
        self._broker.subscribing.restore(key, subscription, group_name)
        if "replay" in options:
            self._broker.subscriptions.remove(subscription)
            replay = Replay(self._broker, key, subscription, self.positions(options["replay"]))
            replay.stop()  # its client starts another when it returns
            session.add_replay(replay)
        return subscription.group

    def _group(self, group: SharedGroup, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        positions = self.positions(state["positions"])
        group.positions.update({stream: at for stream, at in positions.items() if at < stream.routed})
        group.returned.extend(
            AbsentBatch(self._by_number[number], offset, count)
            for number, offset, count in state["returned"]
            if number in self._by_number
        )
        self._broker.groups.restored(group)

    def _retained(self, topic: bytes, message: dict[str, Any], payload: bytes) -> None:
        properties = message.get("properties")
        batch = Batch(
            topic,
            payload,
            message["qos"],
            True,
            None if properties is None else load_properties(properties),
            origin=message["origin"],
        )
        if "expires_at" in message:
            batch.expires_at = self._broker.now + message["expires_at"] - self._wall
        if message.get("stream") in self._by_number:
            batch.lies_in(self._by_number[message["stream"]], message["offset"])
        owner = self._broker.quotas.restored(message.get("owner"))
        if owner is not None:
            batch = batch.owned_by(owner)
        self._broker.retained[topic] = batch

    def consumer(self, name: str, state: dict[str, Any]) -> Consumer:
        """Restore a consumer, without what is pending."""
        known = self._by_number
        consumer = self._broker.consumers[name] = Consumer(
            self._broker,
            name,
            state["filter"].encode(),
            self.positions(state["positions"]),
            state["within"],
            self._broker.quotas.restored(state.get("owner")),
        )
        if consumer.owner is not None:
            consumer.owner.consumers += 1
        if "pending" in state:  # format 2 has it here
            for number, at in state["pending"]:
                if number in known:
                    consumer.pending.add(Place(known[number], at), 0.0)
            consumer.save()
        return consumer

    def _pending(self, name: str, block: bytes, bits: bytes) -> None:
        consumer = self._broker.consumers.get(name)
        stream, number = load_block(block)
        if consumer is None:  # leftovers of a lost consumer must not become another's
            self._journal.state.drop_consumer(name)
        elif stream not in self._by_number:
            self._journal.state.drop_pending(name, block)
        else:
            consumer.pending.restore((self._by_number[stream], number), load_bits(bits))

    def _redo(self, stream: Stream, applied: int) -> None:
        """Apply the effects of messages that the stored state does not include."""
        broker, journal = self._broker, self._journal
        for rows in journal.read_all(stream, applied):
            ids = rows.column(7)
            if ids.null_count < len(ids):
                clients = rows.column(6).to_pylist()
                for client_id, packet_id in zip(clients, ids.to_pylist(), strict=True):
                    session = broker.sessions.by_id.get(client_id)
                    if packet_id is not None and session is not None:
                        session.incoming = session.incoming or set()
                        session.incoming.add(packet_id)
                        journal.state.save_incoming(session)
            self._redo_stored(stream, rows)
            for batch, offset, when in batches_in(rows.filter(rows.column(5))):
                last = batch.part(batch.count - 1, batch.count)
                owner = self._owner_of(batch.origin)
                if owner is not None:
                    last = last.owned_by(owner)
                broker.retained.retain(journal.place(stream, last, offset + batch.count - 1, when))

    def _owner_of(self, client_id: str | None) -> Account | None:
        """Return the account that messages with a client id count for, if it is known."""
        if client_id is None:
            return None
        sink = self._journal.sinks.get(client_id.rpartition("/")[0])
        if sink is not None and sink.owner:
            return self._broker.quotas.restored(f"user:{sink.owner}")
        return self._broker.quotas.restored(self._owners.get(client_id))

    def _redo_stored(self, stream: Stream, rows: pa.RecordBatch) -> None:
        """Count messages that were stored after the last commit of the state."""
        clients = rows.column("client_id")
        for client_id in pc.unique(clients).to_pylist():
            account = self._owner_of(client_id)
            if account is None or account.meter is None:
                continue
            complete = self._complete.get(account.key, {}).get(stream.number, 0)
            chosen = pc.and_(pc.equal(clients, client_id), pc.greater_equal(rows.column("offset"), complete))
            found = rows.filter(chosen)
            if found.num_rows:
                size = sum(
                    pc.sum(pc.binary_length(found.column(one))).as_py() for one in ("topic", "payload")
                )
                account.store(stream, found.column("offset")[-1].as_py() + 1, size)


def dump_properties(properties: Properties) -> dict[str, Any]:
    """Return properties as a JSON object."""
    data = properties.correlation_data
    return {
        "payload_format": properties.payload_format,
        "message_expiry": properties.message_expiry,
        "content_type": properties.content_type,
        "response_topic": properties.response_topic,
        "correlation_data": None if data is None else data.hex(),
        "user_properties": properties.user_properties,
    }


def load_properties(values: dict[str, Any]) -> Properties:
    """Invert `dump_properties`."""
    data = values["correlation_data"]
    pairs = tuple((key, value) for key, value in values["user_properties"])
    return Properties(
        **values
        | {"correlation_data": None if data is None else bytes.fromhex(data), "user_properties": pairs}
    )


def dump_block(stream: int, number: int) -> bytes:
    """Return the key of a block of pending messages, which sorts by stream and offset."""
    return _BLOCK.pack(stream, number)


def load_block(place: bytes) -> tuple[int, int]:
    """Invert `dump_block`."""
    stream, number = _BLOCK.unpack(place)
    return stream, number


def dump_bits(bits: int) -> bytes:
    """Return the bits of a block's pending messages as bytes."""
    return bits.to_bytes(BLOCK // 8, "little")


def load_bits(data: bytes) -> int:
    """Invert `dump_bits`."""
    return int.from_bytes(data, "little")

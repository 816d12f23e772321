"""Applying groups: the only place where a node's log, state and ledger change. Every node does the same."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from pyrite.broker.consumers import forget
from pyrite.broker.journal import Done, Fault, Stream
from pyrite.broker.message import Batch
from pyrite.broker.retained import last_of
from pyrite.cluster.changes import STATEMENTS, owner_of
from pyrite.cluster.group import (
    Contents,
    Envelope,
    GroupError,
    Head,
    cluster_number,
    load,
    load_batch,
    unseal,
)
from pyrite.cluster.ledger import CONSUMER, SESSION, Author
from pyrite.cluster.order import OrderedLog
from pyrite.cluster.outbound import Item, Message, Outgoing
from pyrite.cluster.wills import KeptWill
from pyrite.journal import state as sql
from pyrite.journal.restoring import restore_consumer
from pyrite.journal.sink_state import SinkState
from pyrite.journal.state import Change

if TYPE_CHECKING:
    from pyrite.cluster.journal import ClusterJournal

logger = logging.getLogger(__name__)

MOVED = Fault(False, "the session has moved to another node")


class Applying:
    """Applies the groups of an order to a journal."""

    def __init__(self, journal: ClusterJournal, written: dict[Stream, int]) -> None:
        self._journal = journal
        self._ledger = journal.ledger
        self._cluster = cluster_number(journal.cluster)
        self._streams = {stream.name: stream for stream in journal.streams}
        self._written = {stream: end for stream, end in written.items() if end > stream.next_offset}
        """Streams with messages in the log that are to be applied again, and where these end."""
        self._read = 0
        """The sequence of the last group that was delivered."""
        self._order: OrderedLog | None = None
        self._is_paused = False
        self._time = 0
        journal.groups.arrival = lambda: self._time
        self.contradicted: dict[str, int] = {}
        """Nodes whose hash differs from this node's, and after which group."""
        self.positions: dict[str, int] = {}
        """How far each node had applied the order when it made its last group."""

    def follow(self, order: OrderedLog) -> None:
        """Apply the groups of an order, from where this node is."""
        self._order = order
        self._read = self._ledger.restart_after
        order.follow(self._read, self.deliver, self._lost)

    def _lost(self, first: int) -> None:
        self._journal.halt(
            f"the engine holds groups from {first} on, and this node needs group {self._read + 1}: "
            "copy the data of another node"
        )

    # Flow

    def resume_if_room(self) -> None:
        """Have groups delivered again once the disk has caught up."""
        if self._is_paused and not self._journal.groups.full and not self._journal.halted:
            self._is_paused = False
            assert self._order is not None
            self._order.resume()

    def deliver(self, sequence: int, data: bytes) -> None:
        """Apply the next group of the order, or ignore it as every node does."""
        journal = self._journal
        if journal.halted:
            return
        try:
            self._deliver(sequence, data)
        except GroupError as error:
            journal.halt(f"group {sequence} cannot be applied: {error}")
        except Exception as error:
            logger.exception("internal error while applying group %d", sequence)
            journal.halt(f"internal error while applying group {sequence}: {error!r}")
        if journal.groups.full and not self._is_paused:
            self._is_paused = True
            assert self._order is not None
            self._order.pause()
        journal.broker.wake()

    def _deliver(self, sequence: int, data: bytes) -> None:
        journal, ledger = self._journal, self._ledger
        if sequence != self._read + 1:
            what = "a gap" if sequence > self._read else "a sequence that goes backwards"
            raise GroupError(
                f"{what} in the engine's order: group {self._read} came before it; check the engine, "
                "and copy the data of another node if it has lost groups"
            )
        envelope = unseal(self._cluster, data)
        self._read = sequence
        if sequence <= ledger.sequence:  # read again for the first parts of groups
            if envelope.number and ledger.is_next(envelope):
                ledger.add_part(sequence, envelope)
            return
        ledger.sequence = sequence
        is_own = envelope.author == journal.node and envelope.incarnation == journal.outbound.incarnation > 0
        if not envelope.number:
            self._start(sequence, envelope)
        elif ledger.is_next(envelope):
            whole = ledger.add_part(sequence, envelope)
            if whole is not None:
                self._apply(sequence, envelope, whole, journal.outbound.applied() if is_own else None)
                journal.made_room()
        journal.outbound.passed(sequence)

    # Groups

    def _start(self, sequence: int, envelope: Envelope) -> None:
        """Apply the group with which a node begins."""
        contents, _ = load(envelope.contents)
        _, nonce, form, streams, time = contents.items[0]
        journal, ledger = self._journal, self._ledger
        before = ledger.authors.get(envelope.author)
        if before is not None and before.nonce == nonce:
            return  # it was appended twice
        own = {stream.name: stream.number for stream in journal.streams}
        if streams != own:
            raise GroupError(
                f"node {envelope.author} has the streams {list(streams)}, this node {list(own)}: configure "
                "the same streams in the same order on all nodes"
            )
        ledger.authors[envelope.author] = Author(sequence, 0, nonce, form, True, self._later(time))
        ledger.applied(sequence, envelope, self._ends())
        if envelope.author == journal.node:
            journal.started(nonce, sequence)

    def _later(self, time: int) -> int:
        """Return a time that is not before that of earlier groups."""
        groups = self._journal.groups
        groups.last_time = max(groups.last_time, time)
        return groups.last_time

    def _apply(self, sequence: int, envelope: Envelope, whole: bytes, own: Outgoing | None) -> None:
        journal, author = self._journal, envelope.author
        if own is None:
            contents, at = load(whole)
            items: Iterator[Item] = self._items(contents, whole, at)
        else:
            if own.parts[-1].number != envelope.number:
                raise GroupError(f"it is not the group {envelope.number} that this node has appended")
            contents, items = own.contents, iter(own.items)
        self._compare(author, contents)
        for item in items:
            if isinstance(item, Message):
                self._message(item)
            elif isinstance(item, list):
                self._operation(sequence, author, item)
            elif item.in_turn:
                journal.groups.in_turn(item.call)
            else:
                item.call()
        for code, *values in contents.rows:
            if code >= len(STATEMENTS):
                raise GroupError(
                    f"it changes rows in a way that this version does not know ({code}): upgrade"
                )
            self._row((STATEMENTS[code], tuple(values)), author, contents.epochs, own is not None)
        if own is not None:
            for call in own.waiters:
                journal.groups.after(call)
        self._ledger.applied(sequence, envelope, self._ends())

    def _ends(self) -> list[int]:
        return [stream.next_offset for stream in self._journal.streams]

    def _items(self, contents: Contents, whole: bytes, at: int) -> Iterator[Item]:
        """Yield the messages and operations of another node's group."""
        for values in contents.items:
            if len(values) != len(Head._fields):
                yield values
                continue
            head = Head(*values)
            batch = self._batch(head, whole[at : at + head.size], head.time)
            at += head.size
            stream = self._streams[head.stream] if head.stream else None
            yield Message(batch, stream, head.time, None, None, head.epoch)

    def _batch(self, head: Head, data: bytes, time: int) -> Batch:
        """Return a message as it was published at a time."""
        journal, batch = self._journal, load_batch(head, data)
        properties = batch.properties
        if properties is not None and properties.message_expiry is not None:
            left = time / 1e6 + properties.message_expiry - journal.wall()
            batch.expires_at = journal.broker.now + left
        return batch if head.owner is None else batch.owned_by(journal.broker.quotas.restored(head.owner))

    def _compare(self, author: str, contents: Contents) -> None:
        """Compare the hash of what an author had applied with this node's."""
        journal, ledger = self._journal, self._ledger
        self.positions[author] = contents.position
        known = ledger.hash_after(contents.position)
        if author == journal.node or known is None:
            return
        if known == contents.hash:
            self.contradicted.pop(author, None)
            return
        if author not in self.contradicted:
            logger.error(
                "node %s has applied something else than this node up to group %d", author, contents.position
            )
        self.contradicted[author] = contents.position
        others = sum(one.is_here for name, one in ledger.authors.items() if name != journal.node)
        if 2 * len(self.contradicted) > others:
            raise GroupError(
                f"the hash of everything applied up to group {contents.position} differs from that of "
                f"{', '.join(sorted(self.contradicted))}: this node's data is not to be trusted; copy the "
                "data of another node"
            )

    # Messages

    def _message(self, message: Message) -> None:
        journal = self._journal
        batch, stream, time, _, done, epoch = message
        if epoch:
            assert batch.origin is not None
            owner = self._ledger.owner(SESSION, batch.origin)
            if owner is None or owner.epoch != epoch:
                if done is not None:
                    done(False, MOVED)
                return
        self._time = time
        if stream is None:
            deliver = journal.broker.publishing.deliver_in_turn
            journal.groups.in_turn(partial(deliver, batch, done))
        elif stream in self._written:
            self._again(stream, batch, done)
        else:
            self._append(stream, batch, done)
        if batch.retain:
            self._retain(batch)

    def _append(self, stream: Stream, batch: Batch, done: Done | None) -> None:
        told = self._settled if done is None else partial(self._settled_for, done)
        self._journal.groups.append(stream, batch, told, None)

    def _settled(self, matched: bool, fault: Fault | None) -> None:
        if fault is not None:
            self._journal.halt(
                f"messages cannot be written ({fault.text}): see to the disk, then start this node again"
            )

    def _settled_for(self, done: Done, matched: bool, fault: Fault | None) -> None:
        if fault is None and not self._journal.halted:
            done(matched, None)
        else:
            self._settled(matched, fault)

    def _again(self, stream: Stream, batch: Batch, done: Done | None) -> None:
        """Apply messages that were written before this process began, or some of which were."""
        groups, end = self._journal.groups, self._written[stream]
        count = min(batch.count, end - stream.next_offset)
        stream.next_offset += count
        stream.routed = stream.next_offset
        if stream.next_offset == end:
            del self._written[stream]
        if count < batch.count:
            self._append(stream, batch.part(count, batch.count), done)
            batch.lies_in(stream, stream.next_offset - batch.count)
            return
        groups.last_time = max(self._time, groups.last_time + 1)
        batch.lies_in(stream, stream.next_offset - batch.count)
        if batch.retain:
            self._journal.broker.publishing.retain(batch)

    def _retain(self, batch: Batch) -> None:
        """Change the row of a topic's retained message; the message is retained when it is delivered."""
        rows = self._journal.rows
        if batch.payload(batch.count - 1):
            rows.save_retained(last_of(batch))
        else:
            rows.drop_retained(batch.topic)

    # Operations

    def _operation(self, sequence: int, author: str, operation: list[Any]) -> None:
        journal, ledger, note = self._journal, self._ledger, self._journal.rows.note
        match operation:
            case ["unretain", topic]:
                note((sql.DROP_RETAINED, (topic,)))
                journal.groups.in_turn(partial(journal.broker.retained.pop, topic))
            case ["claim", kind, name, clean_start, time]:
                self._end_will(kind, name, clean_start, time)
                journal.ownership.claimed(sequence, author, kind, name, clean_start)
            case ["release", kind, name, epoch]:
                journal.ownership.released(kind, name, epoch)
            case ["gone", node, incarnation, time]:
                one = ledger.authors.get(node)
                if one is not None and one.is_here and one.incarnation == incarnation:
                    one.is_here, one.began, one.parts = False, self._later(time), []
                    if node == journal.node:
                        journal.declared_gone()
            case ["set-will", client_id, epoch, delay, who, head, data]:
                journal.wills.set(KeptWill(author, client_id, epoch, delay, who, head, data))
            case ["drop-will", client_id, epoch]:
                journal.wills.take(client_id, epoch)
            case ["publish-will", client_id, epoch, time]:
                self._publish_will(journal.wills.take(client_id, epoch), time)
            case _:
                raise GroupError(
                    f"it has an operation that this version does not know ({operation[0]}): upgrade"
                )

    def _end_will(self, kind: str, name: str, clean_start: bool, time: int) -> None:
        """Publish the will of a client whose session is claimed, or drop it if the session goes on."""
        owner = self._ledger.owners.get((kind, name))
        if kind == SESSION and owner is not None:
            will = self._journal.wills.take(name, owner.epoch)
            if will is not None and (clean_start or not will.delay):  # [MQTT-3.1.3-9]
                self._publish_will(will, time)

    def _publish_will(self, will: KeptWill | None, time: int) -> None:
        if will is not None:
            batch = self._batch(Head(*will.head), will.data, time)
            stream = self._streams[will.head[0]] if will.head[0] else None
            self._message(Message(batch, stream, time, None, None, 0))

    # Rows

    def _row(self, change: Change, author: str, epochs: dict[str, int], is_own: bool) -> None:
        """Change a row, unless its session or consumer belongs to another node by now."""
        journal, ledger = self._journal, self._ledger
        key = owner_of(change)
        if key is not None:
            owner = ledger.owner(*key)
            if owner is None or owner.epoch != epochs.get("/".join(key)):
                return
        journal.rows.note(change)
        statement, values = change
        created = journal.broker.catalog.created
        if statement is sql.SAVE_SESSION:
            journal.ownership.saved(*values)
        elif statement is sql.DROP_SESSION:
            journal.ownership.dropped(values[0])
        elif statement is sql.SAVE_CONSUMER and not is_own:
            restore_consumer(journal, journal.broker, values[0], json.loads(values[1]))
        elif statement is sql.SAVE_PENDING:
            journal.ownership.handed_out(values[0], values[1])
        elif statement is sql.DROP_PENDING:
            journal.ownership.none_pending(values[0], values[1])
        elif statement is sql.DROP_CONSUMER:
            if not is_own and values[0] in journal.broker.consumers:
                forget(journal.broker.consumers[values[0]])
            journal.rows.note((sql.DROP_ALL_PENDING, values))
            ledger.set_owner(CONSUMER, values[0], None, journal.rows.note)
        elif statement is sql.SAVE_TOPIC:
            created[values[0]] = True
        elif statement is sql.DROP_TOPIC:
            created.pop(values[0])
        elif statement is sql.SAVE_SINK and not is_own:
            journal.sinks[values[0]] = SinkState.load(values[0], json.loads(values[1]))
        elif statement is sql.DROP_SINK and not is_own:
            journal.sinks.pop(values[0], None)

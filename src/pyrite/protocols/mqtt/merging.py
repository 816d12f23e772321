"""Merging: PUBLISH packets of many connections become one batch. HOT.

A thousand devices that send a message now and then, or wait for each PUBACK, never fill a read. But one
wake-up of the server finds many of them ready. Their packets are routed, written to the log and sent to a
subscriber together.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyrite.broker.message import MixedBatch
from pyrite.protocols.mqtt.acks import unpack_ids, write_acks
from pyrite.protocols.mqtt.delivery import FORM_V5
from pyrite.protocols.mqtt.gathering import MAX_DELIVERIES, Gathering
from pyrite.protocols.mqtt.publishing import publish_gathered
from pyrite.protocols.mqtt.reasons import Reason
from pyrite.protocols.mqtt.replies import Reply

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.broker.journal import Fault
    from pyrite.protocols.conversation import Conversation
    from pyrite.protocols.mqtt.connection import Connection

logger = logging.getLogger(__name__)


class Merger:
    """Collects packets while the server reads from the sockets that are ready."""

    __slots__ = ("_broker", "_forms", "_gatherings", "is_empty")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._gatherings: dict[int, Gathering] = {}
        """By wire form."""
        self._forms: dict[Conversation, int] = {}
        """The wire form of the packets of each connection that were collected."""
        self.is_empty = True

    def feed(self, connection: Conversation, data: bytes) -> bool:
        """Collect what a client sent, or have its connection handle it; return true if it did.

        What was collected of a client is published before more of the same client is handled. And before a
        connection that is not logged in: its client may take over a session whose messages were collected.
        """
        taken = connection.joins(self, data)
        if taken == len(data):
            return False
        if connection.session is None or connection in self._forms:
            self.publish()
        connection.feed(data[taken:] if taken else data)
        return True

    def add(self, connection: Connection, data: bytes) -> int:
        """Add packets from the front of a read. Return how many bytes of it were taken."""
        form = connection.form | data[0] & 7
        if self._forms.get(connection, form) != form:
            self.publish()  # messages of one client keep their order
        if sum([one.cost for one in self._gatherings.values()]) >= MAX_DELIVERIES:
            self.publish()  # in one turn
        gathering = self._gatherings.get(form)
        if gathering is None:
            gathering = self._gatherings[form] = Gathering(form, merges=True)
        taken = gathering.add(connection, data, 0)
        if taken:
            self.is_empty = False
            self._forms[connection] = form
        return taken

    def publish(self) -> None:
        """Publish what was collected: a batch for each wire form."""
        if self.is_empty:
            return
        gatherings, self._gatherings, self.is_empty = self._gatherings, {}, True
        self._forms = {}
        for gathering in gatherings.values():
            if not gathering.connections:
                continue
            try:
                _publish(self._broker, gathering)
            except Exception:
                logger.exception("internal error: merged messages were not published")
                for connection in gathering.connections:
                    connection.fail(Reason.UNSPECIFIED_ERROR, "internal error")


def _publish(broker: Broker, gathering: Gathering) -> None:
    connections = gathering.connections
    if len(connections) == 1:
        broker.figures.bytes_received += len(gathering.data[0])
        connections[0].guarded(publish_gathered, gathering)
        return
    batch = gathering.batch()
    assert isinstance(batch, MixedBatch)
    done = None
    if batch.qos:
        high, low = gathering.ids(batch.data)
        if 0 in unpack_ids(high, low):  # an error of one of the clients [MQTT-2.2.1-3]
            for connection, data in zip(connections, gathering.data, strict=True):
                connection.feed(data)
            return
        done = _MergedReply(gathering, high, low).done
    figures = broker.figures
    figures.bytes_received += len(batch.data)
    figures.publish_received += batch.count
    figures.publish_bytes_received += len(batch.data)
    broker.publishing.publish_mixed(batch, gathering.routes, done)


class _MergedReply:
    """The PUBACK of every packet that was merged."""

    __slots__ = ("_connections", "_counts", "_high", "_low", "_sessions")

    def __init__(self, gathering: Gathering, high: bytes, low: bytes) -> None:
        self._connections = gathering.connections
        self._counts = gathering.counts
        self._sessions = [connection.session for connection in gathering.connections]
        self._high = high
        self._low = low

    def done(self, matched: bool, fault: Fault | None) -> None:
        """Acknowledge the packets, which are committed and routed; or refuse them."""
        is_five = self._connections[0].form == FORM_V5
        reason = Reason.NO_MATCHING_SUBSCRIBERS if is_five and not matched else 0
        at = 0
        for connection, session, count in zip(self._connections, self._sessions, self._counts, strict=True):
            high, low = self._high[at : at + count], self._low[at : at + count]
            at += count
            if connection.session is not session:
                continue  # the client has left
            if fault is None:
                connection.write(write_acks(0x40, high, low, reason))
                connection.broker.figures.packets_sent += count
            else:
                Reply(connection, 1, unpack_ids(high, low), high, low).done(False, fault)

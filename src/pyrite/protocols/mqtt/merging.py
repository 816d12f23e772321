"""Merging: PUBLISH packets of many connections become one batch. HOT.

A thousand devices that send a message now and then, or wait for each PUBACK, never fill a read. But one
wake-up of the server finds many of them ready. Their packets are routed, written to the log and sent to a
subscriber together: a merged message takes a third of the time of one that is published by itself.
"""

from __future__ import annotations

import logging
from itertools import accumulate
from typing import TYPE_CHECKING

from pyrite.broker.message import MixedBatch
from pyrite.protocols.mqtt.acks import unpack_ids
from pyrite.protocols.mqtt.batching import max_mixed
from pyrite.protocols.mqtt.delivery import FORM_V5
from pyrite.protocols.mqtt.reasons import Reason
from pyrite.protocols.mqtt.replies import Reply

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.broker.journal import Fault
    from pyrite.broker.routes import Route
    from pyrite.protocols.mqtt.connection import Connection

logger = logging.getLogger(__name__)

MAX_MERGED_READ = 4 * 1024
"""Bytes of a read whose packets are merged: a larger read is a batch of its own."""
PLAIN = (0x30, 0x32)
"""First bytes of packets that may be merged: QoS 0 and 1, neither retained nor sent again."""

_NO_MATCH = bytes((Reason.NO_MATCHING_SUBSCRIBERS,))


class Merge:
    """Packets of one wire form that go the same route."""

    __slots__ = ("connections", "ids_at", "most", "packets", "route", "topics")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.most = max_mixed(route)
        """Packets that may be merged; the batch is delivered in one turn."""
        self.connections: list[Connection] = []
        """The connection of each packet."""
        self.packets: list[bytes] = []
        self.topics: list[bytes] = []
        self.ids_at: list[int] = []
        """End of the topic in each packet, where the packet id follows with QoS 1."""

    def batch(self, kind: int) -> MixedBatch:
        """Return the packets as one batch."""
        starts = [0, *accumulate(map(len, self.packets[:-1]))]
        return MixedBatch(
            b"".join(self.packets),
            starts,
            self.topics,
            [start + at for start, at in zip(starts, self.ids_at, strict=True)],
            (2 if kind & 6 else 0) + (kind >= FORM_V5),
            kind >> 1 & 3,
            [connection.credentials.client_id for connection in self.connections],
            kind,
        )


class Merger:
    """Collects packets until the server has read from every socket that is ready."""

    __slots__ = ("_broker", "_merges", "is_empty")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._merges: dict[int, dict[Route, Merge]] = {}
        """By wire form and route."""
        self.is_empty = True

    def add(self, connection: Connection, data: bytes) -> int:
        """Add packets from the front of a read. Return how many bytes of it were taken.

        They all have one route, so that they are acknowledged in their order [MQTT-4.6.0-2]. A topic that has
        a route is valid. A publisher that has its route to itself is left alone: there are no others to merge
        its packets with. So are publishers to so many subscribers that each message is a batch of its own.
        """
        first, end = data[0], len(data)
        kind = connection.form | first & 7
        five = connection.form == FORM_V5
        gap = (2 if first & 6 else 0) + five
        client_id = connection.credentials.client_id
        routes = self._broker.subscriptions.cache.routes
        largest = self._broker.limits.max_packet_size
        merge: Merge | None = None
        at, last = 0, end - 4  # a fixed header and the length of a topic can be read
        while at <= last and data[at] == first:
            length, body = data[at + 1], at + 2
            if length > 127:
                if not 0 < data[body] < 128:
                    break
                length = length & 127 | data[body] << 7
                body += 1
            stop, topic_at = body + length, body + 2
            id_at = topic_at + (data[body] << 8 | data[body + 1])
            if stop > end or length < 3 or id_at + gap > stop or data[topic_at] == 0x24:
                break
            if stop - at > largest:
                break
            if five and data[id_at + gap - 1]:  # properties
                break
            if gap > 1 and not (data[id_at] or data[id_at + 1]):  # a packet id of 0 is an error
                break
            topic = data[topic_at:id_at]
            route = routes.get(topic)
            if merge is None:
                if route is None or route.has_no_local or route.last_publisher is client_id:
                    break
                route.last_publisher = client_id
                if max_mixed(route) < 2:
                    break
                merge = self._merge_of(kind, route)
            elif merge.route is not route:
                break
            if len(merge.packets) >= merge.most:
                break
            merge.connections.append(connection)
            merge.packets.append(data if stop - at == end else data[at:stop])
            merge.topics.append(topic)
            merge.ids_at.append(id_at - at)
            at = stop
        return at

    def _merge_of(self, kind: int, route: Route) -> Merge:
        merges = self._merges.get(kind)
        if merges is None:
            merges = self._merges[kind] = {}
        merge = merges.get(route)
        if merge is None:
            merge = merges[route] = Merge(route)
            self.is_empty = False
        return merge

    def publish(self) -> None:
        """Publish what was collected: a batch for each form and route."""
        collected, self._merges, self.is_empty = self._merges, {}, True
        for kind, merges in collected.items():
            for merge in merges.values():
                try:
                    self._publish(kind, merge)
                except Exception:
                    logger.exception("internal error: merged messages were not published")
                    for connection in merge.connections:
                        connection.fail(Reason.UNSPECIFIED_ERROR, "internal error")

    def _publish(self, kind: int, merge: Merge) -> None:
        if len(merge.packets) == 1:
            merge.connections[0].feed(merge.packets[0])
            return
        broker = self._broker
        batch = merge.batch(kind)
        figures = broker.figures
        figures.bytes_received += len(batch.data)
        figures.publish_received += batch.count
        figures.publish_bytes_received += len(batch.data)
        broker.publishing.publish(batch, merge.route, _MergedReply(merge).done if batch.qos else None)


class _MergedReply:
    """The PUBACK of every packet of a merge."""

    __slots__ = ("_connections", "_ids", "_sessions")

    def __init__(self, merge: Merge) -> None:
        self._connections = merge.connections
        self._sessions = [connection.session for connection in merge.connections]
        self._ids = [packet[at : at + 2] for packet, at in zip(merge.packets, merge.ids_at, strict=True)]

    def done(self, matched: bool, fault: Fault | None) -> None:
        """Acknowledge the packets, which are committed and routed; or refuse them."""
        head, tail = b"\x40\x02", b""
        if not matched and self._connections[0].form == FORM_V5:
            head, tail = b"\x40\x03", _NO_MATCH
        for connection, session, packet_id in zip(self._connections, self._sessions, self._ids, strict=True):
            if connection.session is not session:
                continue  # the client has left
            if fault is None:
                connection.write(head + packet_id + tail)
                connection.broker.figures.packets_sent += 1
            else:
                high, low = packet_id[:1], packet_id[1:]
                Reply(connection, 1, unpack_ids(high, low), high, low).done(False, fault)

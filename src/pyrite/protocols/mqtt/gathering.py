"""Gather PUBLISH packets that differ in topic, size or publisher into one batch. HOT.

Ordinary traffic is mixed: a gateway's read brings messages of many devices, and one wake-up of the server
finds many devices ready. A packet costs half a microsecond here; a batch of its own would cost several.

A packet is gathered if no decision is left for it: its topic is valid, its publisher may publish there, and
its properties need no work of the broker. All others are handled one by one (connection.py).
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING

from pyrite.broker.message import Batch, MixedBatch
from pyrite.broker.routes import MAX_COVERED_ROUTES, Route
from pyrite.protocols.mqtt.batching import MAX_QOS_2_RUN
from pyrite.protocols.mqtt.delivery import FORM_V5
from pyrite.protocols.mqtt.fields import PLAIN_TOPIC, check_utf8
from pyrite.protocols.mqtt.property_batch import PropertyBatch, read_properties, skip_properties
from pyrite.protocols.mqtt.reasons import ProtocolError
from pyrite.topics.filters import InvalidTopic, check_topic

if TYPE_CHECKING:
    from pyrite.protocols.mqtt.connection import Connection

MAX_GATHERED = 1_000
"""Messages of a batch."""
MAX_PACKET = 16_386
"""Bytes of a packet that is gathered."""
MAX_DELIVERIES = 2_000
"""Messages times subscribers of a batch: each may have to be encoded, and delivered by itself."""
MAX_WIDE_DELIVERIES = 16_384
"""The same on a route to many subscribers, among whom a delivery is interrupted (fanout.py)."""
DECISION = 10
"""Deliveries that finding a route counts as, and asking the access rules."""
BYTES_PER_DELIVERY = 8
"""Bytes of properties that count as a delivery."""


class Gathering:
    """PUBLISH packets with equal first bytes, of connections with one version of MQTT."""

    __slots__ = (
        "_has_properties",
        "_ids_at",
        "_left",
        "_size",
        "_starts",
        "_topics",
        "connections",
        "counts",
        "data",
        "form",
        "merges",
        "routes",
    )

    def __init__(self, form: int, merges: bool = False) -> None:
        self.form = form
        """The wire form of all packets."""
        self.merges = merges
        """Whether packets of several connections are gathered: not those for many subscribers."""
        self.connections: list[Connection] = []
        """The publishers, in the order in which their packets were added."""
        self.data: list[bytes] = []
        """The packets of each of them."""
        self.counts: list[int] = []
        """How many packets each of them sent."""
        self.routes: list[Route] = []
        """The route of each packet."""
        self._size = 0
        self._starts: list[int] = []
        self._topics: list[bytes] = []
        self._ids_at: list[int] = []
        self._has_properties = False
        self._left = 0
        """The deliveries for which there is room."""

    def add(self, connection: Connection, data: bytes, start: int) -> int:
        """Add packets of a client, from `start` on. Return the end of the last one that was added."""
        broker = connection.broker
        first = data[start]
        five = self.form >= FORM_V5
        gap = 2 if first & 6 else 0
        subscriptions = broker.subscriptions
        cache = subscriptions.cache
        cached = cache.routes
        max_levels = broker.limits.max_topic_levels
        known_slashes, known_prefix = -1, b""  # of topics that need not be cached
        known_route: Route | None = None
        largest = min(broker.limits.max_packet_size, MAX_PACKET)
        rights = None if broker.policy.allows_all else connection.known_rights()
        starts, topics, routes, ids_at = self._starts, self._topics, self.routes, self._ids_at
        before, left, base = len(starts), self._left, self._size - start
        longest = before + MAX_QOS_2_RUN if first & 4 else MAX_GATHERED
        last_route = routes[-1] if before else None
        at, end = start, len(data)
        last = end - 4  # the last position from which fixed header and topic length can be read
        while at <= last and data[at] == first and len(starts) < longest:
            length, body = data[at + 1], at + 2
            if length > 127:
                if not 0 < data[body] < 128:
                    break
                length = length & 127 | data[body] << 7
                body += 1
            stop = body + length
            if stop > end or length < 3 or stop - at > largest:
                break
            id_at = body + 2 + (data[body] << 8 | data[body + 1])
            if id_at + gap + five > stop or data[body + 2] == 0x24:  # "$"
                break
            topic = data[body + 2 : id_at]
            is_below = known_slashes >= 0 and topic.startswith(known_prefix)
            route = None if is_below else cached.get(topic)
            if route is None:
                slashes = topic.count(b"/")
                is_plain = slashes < max_levels and topic and not topic.translate(None, PLAIN_TOPIC)
                if not is_plain and not _is_valid(topic, max_levels):
                    break
                if is_below and slashes == known_slashes:
                    route = known_route
                if route is None:
                    prefix = cache.prefix_of(topic) if len(cached) >= MAX_COVERED_ROUTES else None
                    route = subscriptions.route(topic)
                    if prefix is None:
                        left -= DECISION
                    else:
                        known_slashes, known_prefix, known_route = slashes, prefix, route
            if route.is_wide and self.merges:
                break
            if last_route is None:
                left = MAX_WIDE_DELIVERIES if route.is_wide else MAX_DELIVERIES
            elif route is not last_route and (
                route.is_wide
                or last_route.is_wide
                or route.stream is not last_route.stream
                or (route.receivers == 0) != (last_route.receivers == 0)  # publishers are told
            ):
                break
            if rights is not None and topic not in rights:
                left -= DECISION
                if not connection.may_publish(topic, rights):
                    break
            left -= route.cost
            if five and data[id_at + gap]:
                if not skip_properties(data, id_at + gap, stop):
                    break
                left -= data[id_at + gap] // BYTES_PER_DELIVERY
                self._has_properties = True
            if left < 0 and before < len(starts):
                break
            last_route = route
            starts.append(at + base)
            topics.append(topic)
            routes.append(route)
            ids_at.append(id_at + base)
            at = stop
        if at > start:
            self._left = left
            self._size += at - start
            self.connections.append(connection)
            self.counts.append(len(starts) - before)
            self.data.append(data if at - start == end else data[start:at])
        return at

    @property
    def cost(self) -> int:
        """How many deliveries of MAX_DELIVERIES the batch takes, of so many that no more should be added."""
        if not self._starts:
            return 0
        return MAX_DELIVERIES - (self._left if len(self._starts) < MAX_GATHERED else 0)

    def ids(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the high and low bytes of all packet ids. `data` is that of the batch."""
        ids_at = self._ids_at
        if len(ids_at) == 1:
            at = ids_at[0]
            return data[at : at + 1], data[at + 1 : at + 2]
        return bytes([data[at] for at in ids_at]), bytes([data[at + 1] for at in ids_at])

    def batch(self) -> Batch:
        """Return what was gathered as one batch."""
        data = self.data[0] if len(self.data) == 1 else b"".join(self.data)
        five, qos, retain = self.form >= FORM_V5, self.form >> 1 & 3, bool(self.form & 1)
        gap = (2 if qos else 0) + five
        names = [connection.credentials.client_id for connection in self.connections]
        if len(self._starts) == 1:
            id_at = self._ids_at[0]
            payload_at, properties = id_at + gap, None
            if self._has_properties:
                payload_at, properties = read_properties(data, payload_at - 1)
            return Batch(
                self._topics[0],
                data,
                qos,
                retain,
                properties,
                None,
                names[0],
                1,
                len(data),
                payload_at,
                self.form,
                id_at,
            )
        origin: str | list[str] = names[0]
        if len(names) > 1:
            origin = list(chain.from_iterable(map(repeat, names, self.counts)))
        kind = PropertyBatch if self._has_properties else MixedBatch
        return kind(data, self._starts, self._topics, self._ids_at, gap, qos, origin, self.form, retain)


def _is_valid(topic: bytes, max_levels: int) -> bool:
    """Return whether a topic may be published on."""
    try:
        check_topic(check_utf8(topic), max_levels)
    except (ProtocolError, InvalidTopic):
        return False
    return True

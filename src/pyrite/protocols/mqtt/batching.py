"""Combine consecutive PUBLISH packets into batches: runs of one shape, and mixed batches. HOT.

A run is one slice of a read. Where topics or sizes alternate, packets with the same subscribers are gathered
into one mixed batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrite.broker.message import MixedBatch
from pyrite.broker.routes import Route
from pyrite.protocols.mqtt.delivery import FORM_V5
from pyrite.protocols.mqtt.shapes import Shape
from pyrite.protocols.runs import MIN_COUNTED_RUN, count_alike, words

if TYPE_CHECKING:
    from pyrite.protocols.mqtt.connection import Connection

MAX_MIXED = 1_000
"""Messages of a mixed batch; gathering takes about 400 ns each."""
MAX_MIXED_DELIVERIES = 2_000
"""Messages times subscribers of a mixed batch: subscribers of another wire form need each message encoded."""
MAX_RUN_DELIVERIES = 16_384
"""Messages times subscribers of a run. A delivery may take 100 ns, and a run is not interrupted."""
MAX_QOS_2_RUN = 256
"""Messages of a run with QoS 2: if only some ids are new, the new messages are copied one by one."""
GROUP_DELIVERIES = 32
"""Deliveries that a shared subscription counts as: each message of a run may go to a different member."""


def run_end(connection: Connection, shape: Shape, data: bytes, start: int) -> int:
    """Return the end of the run of packets of one shape at `start`, whose first packet is complete.

    A run is short enough to be published without reading the clock.
    """
    prefix, length, size = shape.prefix, shape.prefix_length, shape.size
    at = start + size
    last = len(data) - size
    if at > last or data[at : at + length] != prefix:
        return at
    longest = _longest_run(connection, shape)
    last = min(last, start + (longest - 1) * size)
    follows = shape.property_bytes
    if last - at >= MIN_COUNTED_RUN * size:
        if not shape.words:
            shape.words = [*words(prefix, 0), *words(follows, shape.id_at + 2)]
        return at + count_alike(data, at, size, shape.words, longest - 1) * size
    if not follows:
        while at <= last and data[at : at + length] == prefix:
            at += size
        return at
    skip = shape.id_at + 2
    until = skip + len(follows)
    while at <= last and data[at : at + length] == prefix and data[at + skip : at + until] == follows:
        at += size
    return at


def _longest_run(connection: Connection, shape: Shape) -> int:
    """Return the maximum number of messages of this shape that may be published at once."""
    if shape.singly:
        return 1
    route = connection.broker.subscriptions.route(shape.topic)
    longest = max(1, MAX_RUN_DELIVERIES // _receivers(route))
    return min(longest, MAX_QOS_2_RUN) if shape.qos == 2 else longest


def _receivers(route: Route) -> int:
    """Return the number of deliveries that a message on a route counts as."""
    return 1 + len(route.targets) + GROUP_DELIVERIES * len(route.groups)


def max_mixed(route: Route) -> int:
    """Return the most messages of a mixed batch on a route."""
    return min(MAX_MIXED, MAX_MIXED_DELIVERIES // _receivers(route))


def read_mixed(
    connection: Connection, shape: Shape, data: bytes, start: int
) -> tuple[MixedBatch, Route] | None:
    """Gather packets that differ in topic or size into one batch, beginning at `start`.

    `shape` is the shape of the first packet. The others have the same QoS, no other flag, no properties, and
    a topic whose cached route is that of the first. Return None if only one packet qualifies.
    """
    first = data[start]
    five = connection.form == FORM_V5
    gap = (2 if first & 6 else 0) + five
    route = connection.broker.subscriptions.route(shape.topic)
    routes = connection.broker.subscriptions.cache.routes
    longest = max_mixed(route)
    if shape.qos == 2:
        longest = min(longest, MAX_QOS_2_RUN)
    starts: list[int] = []
    topics: list[bytes] = []
    ids_at: list[int] = []
    largest = connection.broker.limits.max_packet_size
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
        topic_at = body + 2
        topic_end = topic_at + (data[body] << 8 | data[body + 1])
        if topic_end + gap > stop or data[topic_at] == 0x24 or (five and data[topic_end + gap - 1]):
            break
        topic = data[topic_at:topic_end]
        if routes.get(topic) is not route:
            break
        starts.append(at - start)
        topics.append(topic)
        ids_at.append(topic_end - start)
        at = stop
    if len(starts) < 2:
        return None
    batch = MixedBatch(
        data[start:at],
        starts,
        topics,
        ids_at,
        gap,
        first >> 1 & 3,
        connection.credentials.client_id,
        connection.form | first & 7,
    )
    return batch, route

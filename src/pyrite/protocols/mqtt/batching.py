"""Find runs of PUBLISH packets of one shape: each is one slice of a read, and one batch. HOT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrite.protocols.mqtt.shapes import Shape
from pyrite.protocols.runs import MIN_COUNTED_RUN, count_alike, words

if TYPE_CHECKING:
    from pyrite.protocols.mqtt.connection import Connection

MAX_RUN_DELIVERIES = 16_384
"""Messages times subscribers of a run. A delivery may take 100 ns, and a run is not interrupted."""
MAX_QOS_2_RUN = 256
"""Messages of a run with QoS 2: if only some ids are new, the new messages are copied one by one."""


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
    longest = max(1, MAX_RUN_DELIVERIES // connection.broker.subscriptions.route(shape.topic).cost)
    return min(longest, MAX_QOS_2_RUN) if shape.qos == 2 else longest

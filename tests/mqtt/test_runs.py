"""Runs of packets with equal headers, and where they end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrite.protocols.mqtt.packets import V5, V311, Publish
from pyrite.protocols.runs import MIN_COUNTED_RUN, count_alike, words
from tests.support.core import Core

LONG = 3 * MIN_COUNTED_RUN


@given(
    data=st.data(), head=st.binary(min_size=1, max_size=30), rest=st.integers(0, 9), count=st.integers(1, 99)
)
def test_any_different_header_byte_ends_a_run(
    data: st.DataObject, head: bytes, rest: int, count: int
) -> None:
    size = len(head) + rest
    packets = bytearray((head + bytes(rest)) * count)
    for _ in range(data.draw(st.integers(0, 3))):
        packets[data.draw(st.integers(0, len(packets) - 1))] ^= data.draw(st.integers(1, 255))
    alike = [packets[at : at + len(head)] == head for at in range(0, count * size, size)]
    before, after = data.draw(st.binary(max_size=5)), bytes(data.draw(st.integers(0, size - 1)))
    found = count_alike(before + packets + after, len(before), size, words(head, 0))
    assert found == (alike.index(False) if False in alike else count)


@pytest.mark.parametrize(
    ("version", "topic_differs", "property_differs"),
    [(V311, True, False), (V5, True, False), (V5, False, True), (V5, True, True)],
)
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("different", [0, 1, MIN_COUNTED_RUN, LONG - 1])
def test_one_different_message_in_a_run_keeps_its_topic_and_properties(
    core: Core, version: int, topic_differs: bool, property_differs: bool, qos: int, different: int
) -> None:
    """It differs in its topic, which is as long as the others, or in a property."""
    subscriber = core.connect("subscriber", version, receive_maximum=1_000)
    # With a subscription identifier, no packet can be forwarded unchanged.
    asked: dict[str, Any] = {"subscription_identifier": [7]} if version == V5 else {}
    subscriber.subscribe("topics/#", qos=qos, **asked)
    publisher = core.connect("publisher", version)
    expected, packets = [], []
    for number in range(LONG):
        own = number == different
        topic = b"topics/longer/b" if own and topic_differs else b"topics/longer/a"
        kind = "text/csv" if own and property_differs else "text/xml"
        values = {"content_type": kind} if version == V5 else {}
        payload = b"%04d" % number
        expected.append((topic, payload, values.get("content_type")))
        packet_id = number + 1 if qos else 0
        packets.append(Publish(topic, payload, qos, packet_id=packet_id, properties=values))
    publisher.send(*packets)
    found = [(one.topic, one.payload, one.properties.get("content_type")) for one in subscriber.messages()]
    assert found == expected

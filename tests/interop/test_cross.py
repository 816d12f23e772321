"""What one client publishes, every other client receives."""

from __future__ import annotations

from itertools import permutations

import pytest

from .client import ClientFactory, Message, Properties
from .matrix import every_pair_of_clients, every_pair_of_versions
from .paho_client import PahoClient


@every_pair_of_versions
@every_pair_of_clients
def test_messages_of_each_qos_travel_between_clients(
    new_client: ClientFactory,
    topic: str,
    publisher_name: str,
    subscriber_name: str,
    publisher_version: str,
    subscriber_version: str,
) -> None:
    payloads = [b"message %d" % number for number in range(10)]
    subscriber = new_client(subscriber_name, "tcp", subscriber_version).subscribe(topic, qos=2)
    publisher = new_client(publisher_name, "tcp", publisher_version)
    for qos in (0, 1, 2):
        publisher.publish(topic, *payloads, qos=qos)
        assert subscriber.receive_many(10) == [Message(topic, payload, qos) for payload in payloads]


@every_pair_of_clients
def test_properties_travel_between_clients(
    new_client: ClientFactory, topic: str, publisher_name: str, subscriber_name: str
) -> None:
    properties = Properties(
        user=(("unit", "°C"), ("unit", "K"), ("place", "roof")),
        content_type="text/plain",
        response_topic=topic + "/answers",
        correlation_data=b"\x80request\xff",
    )
    subscriber = new_client(subscriber_name, "tcp", "5.0").subscribe(topic, qos=2)
    new_client(publisher_name, "tcp", "5.0").publish(topic, b"21", qos=2, properties=properties)
    assert subscriber.receive() == Message(topic, b"21", 2, properties=properties)


@pytest.mark.parametrize(
    ("publisher_transport", "subscriber_transport"),
    [pytest.param(*pair, id="-to-".join(pair)) for pair in permutations(PahoClient.transports, 2)],
)
def test_messages_travel_between_transports(
    new_client: ClientFactory, topic: str, publisher_transport: str, subscriber_transport: str
) -> None:
    payloads = [b"message %d" % number for number in range(10)]
    subscriber = new_client("paho", subscriber_transport, "5.0").subscribe(topic, qos=1)
    new_client("paho", publisher_transport, "5.0").publish(topic, *payloads, qos=1)
    assert subscriber.receive_many(10) == [Message(topic, payload, 1) for payload in payloads]

"""All messages arrive once, in order, with their payload."""

from __future__ import annotations

import random

from .client import Client, Message
from .matrix import every_client_and_transport, every_client_and_transport_of_mqtt_5

MEBIBYTE = 1_048_576


@every_client_and_transport
def test_a_hundred_messages_of_each_qos_arrive_in_order(client: Client, topic: str) -> None:
    payloads = [b"message %d" % number for number in range(100)]
    subscriber = client.subscribe(topic, qos=2)
    for qos in (0, 1, 2):
        client.publish(topic, *payloads, qos=qos)
        assert subscriber.receive_many(100) == [Message(topic, payload, qos) for payload in payloads]


@every_client_and_transport_of_mqtt_5
def test_a_message_of_a_mebibyte_arrives_whole(client: Client, topic: str) -> None:
    payload = random.Random(1).randbytes(MEBIBYTE)
    subscriber = client.subscribe(topic, qos=1)
    client.publish(topic, payload, qos=1)
    # Not compared in the assertion, so that a failure does not print a mebibyte.
    received = subscriber.receive()
    same = received.payload == payload
    assert same
    assert (received.topic, received.qos, len(received.payload)) == (topic, 1, MEBIBYTE)

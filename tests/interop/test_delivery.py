"""Messages arrive: all of them, in order, once, with their content."""

from __future__ import annotations

import random

from .client import Client, Message
from .matrix import every_client, every_qos

MEBIBYTE = 1_048_576


@every_qos
@every_client
def test_a_hundred_messages_arrive_in_order(client: Client, topic: str, qos: int) -> None:
    payloads = [b"message %d" % number for number in range(100)]
    subscriber = client.subscribe(topic, qos=qos)
    client.publish(topic, *payloads, qos=qos)
    assert subscriber.receive_many(100) == [Message(topic, payload, qos) for payload in payloads]


@every_qos
@every_client
def test_a_message_of_a_mebibyte_arrives_whole(client: Client, topic: str, qos: int) -> None:
    payload = random.Random(qos).randbytes(MEBIBYTE)
    subscriber = client.subscribe(topic, qos=qos)
    client.publish(topic, payload, qos=qos)
    # Compared apart, so that a failure does not print a mebibyte.
    received = subscriber.receive()
    same = received.payload == payload
    assert same
    assert (received.topic, received.qos, len(received.payload)) == (topic, qos, MEBIBYTE)

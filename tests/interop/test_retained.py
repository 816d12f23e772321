"""A retained message is sent to later subscribers."""

from __future__ import annotations

from .client import Client, Message
from .matrix import every_client


@every_client
def test_a_new_subscriber_receives_the_retained_message_with_the_retain_flag(
    client: Client, topic: str
) -> None:
    client.publish(topic, b"kept", qos=1, retain=True)
    assert client.subscribe(topic, qos=1).receive() == Message(topic, b"kept", 1, retain=True)

"""The broker publishes the will of a client whose connection breaks."""

from __future__ import annotations

from .client import Client, Message, Will
from .matrix import clients, every_client


@every_client
def test_the_will_is_delivered_when_the_connection_breaks(client: Client, topic: str) -> None:
    watcher = client.subscribe(topic, qos=1)
    lost = client.subscribe(topic + "/other", will=Will(topic, b"gone"))
    lost.break_connection()
    assert watcher.receive() == Message(topic, b"gone", 1)


@clients(versions=["5.0"], names=["mosquitto"])
def test_the_will_is_delivered_after_disconnect_with_will(client: Client, topic: str) -> None:
    watcher = client.subscribe(topic, qos=1)
    leaving = client.subscribe(topic + "/other", will=Will(topic, b"gone"))
    leaving.close()  # at a signal, mosquitto_sub sends DISCONNECT with reason 0x04
    assert watcher.receive() == Message(topic, b"gone", 1)


@clients(names=["paho", "aiomqtt", "mqttjs"])
def test_the_will_is_withheld_after_a_normal_disconnect(client: Client, topic: str) -> None:
    watcher = client.subscribe(topic, qos=1)
    leaving = client.subscribe(topic + "/other", will=Will(topic, b"gone"))
    leaving.close()
    client.publish(topic, b"after", qos=1)
    assert watcher.receive() == Message(topic, b"after", 1)

"""Properties of MQTT 5.0 messages arrive unchanged."""

from __future__ import annotations

from .client import SECONDS, Client, Message, Properties
from .matrix import every_client_of_mqtt_5


@every_client_of_mqtt_5
def test_user_properties_arrive_unchanged_and_in_order(client: Client, topic: str) -> None:
    properties = Properties(user=(("unit", "°C"), ("unit", "K"), ("place", "roof")))
    subscriber = client.subscribe(topic, qos=1)
    client.publish(topic, b"21", qos=1, properties=properties)
    assert subscriber.receive() == Message(topic, b"21", 1, properties=properties)


@every_client_of_mqtt_5
def test_the_content_type_arrives_unchanged(client: Client, topic: str) -> None:
    properties = Properties(content_type="application/json")
    subscriber = client.subscribe(topic, qos=1)
    client.publish(topic, b"{}", qos=1, properties=properties)
    assert subscriber.receive() == Message(topic, b"{}", 1, properties=properties)


@every_client_of_mqtt_5
def test_a_response_arrives_with_the_correlation_data_of_the_request(client: Client, topic: str) -> None:
    answers, requests = topic + "/answers", topic + "/requests"
    requester = client.subscribe(answers, qos=1)
    responder = client.subscribe(requests, qos=1)
    correlation = b"\x80request\xff"
    asked = Properties(response_topic=answers, correlation_data=correlation)
    client.publish(requests, b"2 + 2", qos=1, properties=asked)

    request = responder.receive()
    assert request == Message(requests, b"2 + 2", 1, properties=asked)
    assert request.properties.response_topic is not None
    answered = Properties(correlation_data=request.properties.correlation_data)
    client.publish(request.properties.response_topic, b"4", qos=1, properties=answered)

    expected = Properties(correlation_data=correlation)
    assert requester.receive() == Message(answers, b"4", 1, properties=expected)


@every_client_of_mqtt_5
def test_the_message_expiry_arrives_minus_the_time_in_the_broker(client: Client, topic: str) -> None:
    subscriber = client.subscribe(topic, qos=1)
    client.publish(topic, b"milk", qos=1, properties=Properties(expiry=3600))
    expiry = subscriber.receive().properties.expiry
    assert expiry is not None
    assert 3600 - SECONDS <= expiry <= 3600


@every_client_of_mqtt_5
def test_the_subscription_identifier_arrives_with_the_message(client: Client, topic: str) -> None:
    identifier = 268_435_455  # the largest, four bytes long
    subscriber = client.subscribe(topic, qos=1, identifier=identifier)
    client.publish(topic, b"hello", qos=1)
    expected = Properties(subscription_identifiers=(identifier,))
    assert subscriber.receive() == Message(topic, b"hello", 1, properties=expected)

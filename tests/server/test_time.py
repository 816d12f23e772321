"""The real clock: keep-alive, session expiry and will delay, a second each."""

from __future__ import annotations

import time

import pytest

from tests.conformance.wire import Will

from .peers import SCHEMES, Server, unique

TOLERANCE = 0.5


@pytest.mark.parametrize("scheme", ["mqtt", "ws", "mqtts"])
def test_a_silent_client_is_closed_after_one_and_a_half_of_its_keep_alive(
    server: Server, scheme: str
) -> None:
    client = server.connect(scheme, keep_alive=1)
    began = time.monotonic()
    client.expect_disconnect(0x8D)
    assert abs(time.monotonic() - began - 1.5) < TOLERANCE


def test_a_silent_v3_client_is_closed_without_a_word(server: Server) -> None:
    client = server.connect(version=4, keep_alive=1)
    began = time.monotonic()
    client.expect_closed()
    assert abs(time.monotonic() - began - 1.5) < TOLERANCE


def test_a_client_that_pings_in_time_stays(server: Server) -> None:
    client = server.connect(keep_alive=1)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        client.ping()
        with pytest.raises(TimeoutError):
            client.read(0.7)
    client.ping()


def test_messages_that_a_client_only_receives_do_not_keep_it_alive(server: Server, topic: str) -> None:
    client, publisher = server.connect(keep_alive=1), server.connect()
    client.subscribe(topic)
    began = time.monotonic()
    while time.monotonic() < began + 4:
        publisher.publish(topic, b"hello")
        found = client.read()
        if found.name == "DISCONNECT":
            break
        with pytest.raises(TimeoutError):
            publisher.read(0.1)
    assert found.reason == 0x8D
    assert abs(time.monotonic() - began - 1.5) < TOLERANCE


def test_a_session_is_there_within_its_expiry_interval_and_gone_after_it(server: Server) -> None:
    client_id = unique("session")
    server.connect(client_id=client_id, session_expiry_interval=1).close()
    again = server.connect(client_id=client_id, clean=False, session_expiry_interval=1)
    assert again.connack is not None
    assert again.connack.session_present
    again.close()
    witness = server.connect()
    with pytest.raises(TimeoutError):
        witness.read(1.0 + TOLERANCE)
    late = server.connect(client_id=client_id, clean=False)
    assert late.connack is not None
    assert not late.connack.session_present


def test_a_will_comes_when_its_delay_is_over(server: Server, topic: str) -> None:
    witness = server.connect()
    witness.subscribe(topic)
    will = Will(topic, b"gone", properties={"will_delay_interval": 1})
    client = server.connect(will=will, session_expiry_interval=60)
    began = time.monotonic()
    client.close()
    assert witness.receive().payload == b"gone"
    assert abs(time.monotonic() - began - 1.0) < TOLERANCE


def test_a_delayed_will_comes_when_the_session_expires_before_it(server: Server, topic: str) -> None:
    witness = server.connect()
    witness.subscribe(topic)
    will = Will(topic, b"gone", properties={"will_delay_interval": 60})
    client = server.connect(will=will, session_expiry_interval=1)
    began = time.monotonic()
    client.close()
    assert witness.receive().payload == b"gone"
    assert abs(time.monotonic() - began - 1.0) < TOLERANCE


def test_a_delayed_will_does_not_come_if_the_client_is_back_in_time(server: Server, topic: str) -> None:
    witness, client_id = server.connect(), unique("back")
    witness.subscribe(topic)
    will = Will(topic, b"gone", properties={"will_delay_interval": 1})
    server.connect(client_id=client_id, will=will, session_expiry_interval=60).close()
    back = server.connect(client_id=client_id, clean=False, session_expiry_interval=60)
    with pytest.raises(TimeoutError):
        witness.read(1.0 + TOLERANCE)
    back.disconnect()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_will_comes_at_once_when_the_connection_breaks(server: Server, scheme: str, topic: str) -> None:
    witness = server.connect()
    witness.subscribe(topic)
    server.connect(scheme, will=Will(topic, b"gone")).close()
    assert witness.receive(2.0).payload == b"gone"


def test_a_message_expires_by_the_clock(server: Server, topic: str) -> None:
    away = unique("away")
    server.connect(client_id=away, session_expiry_interval=60).subscribe(topic, qos=1)
    server.connect(client_id=away, clean=False, session_expiry_interval=60).disconnect()
    publisher = server.connect()
    publisher.publish(topic, b"short", qos=1, message_expiry_interval=1)
    publisher.publish(topic, b"long", qos=1, message_expiry_interval=60)
    with pytest.raises(TimeoutError):
        publisher.read(1.0 + TOLERANCE)
    back = server.connect(client_id=away, clean=False)
    message = back.receive()
    assert message.payload == b"long"
    assert message.properties["message_expiry_interval"] in (58, 59)

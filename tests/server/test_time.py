"""Keep-alive and wills over every kind of listener; tests/conformance has all else about the clock."""

from __future__ import annotations

import time

import pytest

from tests.conformance.wire import Will

from .peers import PLAIN_AND_LAYERED, SCHEMES, Server


@pytest.mark.parametrize("scheme", PLAIN_AND_LAYERED)
def test_a_silent_client_is_closed_after_one_and_a_half_of_its_keep_alive(
    server: Server, scheme: str
) -> None:
    client = server.connect(scheme, keep_alive=1)
    began = time.monotonic()
    client.expect_disconnect(0x8D)
    assert time.monotonic() - began > 1.2


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_will_is_published_at_once_when_the_connection_breaks(
    server: Server, scheme: str, topic: str
) -> None:
    witness = server.connect()
    witness.subscribe(topic)
    server.connect(scheme, will=Will(topic, b"gone")).close()
    assert witness.receive().payload == b"gone"

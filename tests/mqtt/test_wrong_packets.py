"""Malformed packets: the broker sends the reason, closes the connection, and serves the other clients."""

from __future__ import annotations

import pytest

from pyrite.protocols.mqtt.packets import V5, Connack, Disconnect
from pyrite.protocols.mqtt.reasons import Reason, return_code
from tests.support.core import Client, Core
from tests.support.wire_cases import PUBLISHES, TO_CLIENT, VALID, WRONG_CONNECTS, WRONG_FROM_CLIENTS, Case

WRONG_LATER = [case for case in WRONG_FROM_CLIENTS if case not in WRONG_CONNECTS]
FIRST_OF_EACH_TYPE = {case.data[0] >> 4: case for case in WRONG_LATER if case.data[0] >> 4 != 1}.values()
"""A wrong packet of each type but CONNECT."""
VALID_LATER = [case for case in VALID if case.direction != TO_CLIENT and case.data[0] not in (0x10, 0xF0)]


def expect_the_end(client: Client, case: Case) -> None:
    """Require DISCONNECT with the reason, where the version has it, and the end [MQTT-4.13.1-1]."""
    packets = client.received()
    if case.version == V5:
        last = packets[-1] if packets else None
        assert isinstance(last, Disconnect), packets
        assert last.reason == case.says
        assert len(packets) == 1 or case.name == "second connect"
    else:
        assert packets == []
    assert client.closed
    assert client.connection.session is None


@pytest.mark.parametrize("case", WRONG_LATER, ids=str)
def test_a_malformed_packet_after_valid_ones_ends_the_connection(core: Core, case: Case) -> None:
    """Valid packets prime the fast paths of the connection, which must not trust the next packet."""
    publish = next(c.data for c in PUBLISHES if c.version == case.version and c.name == "publish")
    other = core.connect("other")
    other.subscribe("#")
    core.connect("first").publish("a", b"")  # the topic of the wrong packets is well known
    other.received()
    client = core.connect("wrong", case.version)
    client.send(publish + case.data + publish)
    expect_the_end(client, case)
    assert other.payloads() == [b"hello"]


@pytest.mark.parametrize("case", WRONG_LATER, ids=str)
def test_a_malformed_packet_in_single_bytes_ends_its_connection_and_no_other(core: Core, case: Case) -> None:
    other = core.connect("other")
    client = core.connect("wrong", case.version)
    for number in range(len(case.data)):
        client.send(case.data[number : number + 1])
    expect_the_end(client, case)
    assert other.ping()
    assert other.received() == []


@pytest.mark.parametrize("case", WRONG_CONNECTS, ids=str)
def test_a_malformed_connect_is_refused_with_its_reason(core: Core, case: Case) -> None:
    assert isinstance(case.says, Reason)
    other = core.connect("other")
    client = core.wire(case.version)
    client.send(case.data)
    packets = client.received()
    code = case.says if case.version == V5 else return_code(case.says)
    if code is None:
        assert packets == []
    else:
        (connack,) = packets
        assert isinstance(connack, Connack)
        assert (connack.reason, connack.session_present) == (code, False)
    assert client.closed
    assert "a" not in core.broker.sessions.by_id
    assert other.ping()


@pytest.mark.parametrize("case", FIRST_OF_EACH_TYPE, ids=str)
def test_a_packet_before_connect_gets_no_answer(core: Core, case: Case) -> None:
    """[MQTT-3.1.0-1]: the first packet is a CONNECT."""
    client = core.wire(case.version)
    client.send(case.data)
    assert client.closed
    assert client.received() == []


@pytest.mark.parametrize("case", VALID_LATER, ids=str)
def test_a_valid_packet_keeps_the_connection_open(core: Core, case: Case) -> None:
    client = core.connect("right", case.version, **({"session_expiry": 10} if case.version == V5 else {}))
    other = core.connect("other", case.version)
    other.subscribe("a/#", qos=2)
    client.send(case.data)
    assert client.closed is (case.data[0] == 0xE0)
    assert other.ping()

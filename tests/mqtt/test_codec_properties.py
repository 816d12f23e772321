"""The codec on random packets and random bytes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.protocols.mqtt import fields
from pyrite.protocols.mqtt.packets import V5, Packet, decode, encode
from pyrite.protocols.mqtt.reasons import ProtocolError
from tests.mqtt.packet_strategies import VERSIONS, packets
from tests.support.core import split


@settings(max_examples=250, deadline=None)
@given(VERSIONS.flatmap(lambda version: st.tuples(st.just(version), packets(version))))
def test_an_encoded_packet_decodes_to_itself(case: tuple[int, Packet]) -> None:
    version, packet = case
    ((first, body),) = split(encode(packet, version))
    assert decode(first, body, version) == packet


@settings(max_examples=250, deadline=None)
@given(VERSIONS, st.integers(0, 255), st.binary(max_size=40))
def test_random_bytes_decode_or_are_refused(version: int, first: int, body: bytes) -> None:
    try:
        packet = decode(first, body, version)
    except ProtocolError:
        return
    ((again, rest),) = split(encode(packet, version))
    assert decode(again, rest, version) == packet


@settings(max_examples=150, deadline=None)
@given(packets(V5), st.data())
def test_a_packet_with_one_changed_byte_decodes_or_is_refused(packet: Packet, data: st.DataObject) -> None:
    ((first, body),) = split(encode(packet, V5))
    if body:
        at = data.draw(st.integers(0, len(body) - 1))
        body = body[:at] + bytes((data.draw(st.integers(0, 255)),)) + body[at + 1 :]
    try:
        decode(first, body, V5)
    except ProtocolError:
        pass


@settings(max_examples=150, deadline=None)
@given(st.integers(0, fields.MAX_VARINT))
def test_a_variable_byte_integer_decodes_to_itself(value: int) -> None:
    encoded = fields.varint(value)
    assert len(encoded) == (1 if value < 128 else 2 if value < 16_384 else 3 if value < 2_097_152 else 4)
    assert fields.Reader(encoded).varint() == value

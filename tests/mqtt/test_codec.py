"""The codec against the table of wire cases."""

from __future__ import annotations

import pytest

from pyrite.protocols.mqtt.packets import Packet, decode, encode
from pyrite.protocols.mqtt.reasons import ProtocolError, Reason
from tests.support.core import split
from tests.support.wire_cases import CASES, VALID, WRONG, Case


def decoded(case: Case) -> Packet:
    ((first, body),) = split(case.data)
    return decode(first, body, case.version)


def test_wire_cases_have_unique_names() -> None:
    names = [str(case) for case in CASES]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("case", VALID, ids=str)
def test_valid_bytes_decode_to_the_packet(case: Case) -> None:
    assert decoded(case) == case.says


@pytest.mark.parametrize("case", [case for case in VALID if case.canonical], ids=str)
def test_a_packet_encodes_to_its_canonical_bytes(case: Case) -> None:
    assert not isinstance(case.says, Reason)
    assert encode(case.says, case.version) == case.data


@pytest.mark.parametrize("case", [case for case in WRONG if case.codec], ids=str)
def test_malformed_bytes_are_refused_with_the_reason(case: Case) -> None:
    with pytest.raises(ProtocolError) as error:
        decoded(case)
    assert error.value.reason == case.says


@pytest.mark.parametrize("case", [case for case in VALID if case.canonical], ids=str)
def test_a_truncated_packet_is_refused_or_is_another_packet(case: Case) -> None:
    """Decoding raises ProtocolError or nothing, wherever the packet is cut."""
    ((first, body),) = split(case.data)
    for length in range(min(len(body), 300)):
        try:
            assert decode(first, body[:length], case.version) != case.says
        except ProtocolError:
            pass

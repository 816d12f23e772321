"""Arbitrary bytes in arbitrary pieces cause no internal error and do not affect other clients."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.protocols.mqtt.packets import V5, V311, Publish, encode
from tests.mqtt.packet_strategies import packets
from tests.support.core import Core
from tests.support.wire_cases import CASES, TO_CLIENT

FROM_CLIENTS = [case.data for case in CASES if case.direction != TO_CLIENT and len(case.data) < 1_000]


@st.composite
def noise(draw: st.DrawFn, version: int) -> bytes:
    """Return random bytes, or packets from the table or of this version with a few bytes changed."""
    parts = draw(
        st.lists(
            st.binary(max_size=12)
            | st.sampled_from(FROM_CLIENTS)
            | packets(version).map(lambda packet: encode(packet, version)),
            min_size=1,
            max_size=6,
        )
    )
    data = bytearray(b"".join(parts))
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([V5, V311]).flatmap(lambda version: st.tuples(st.just(version), noise(version))),
    st.lists(st.integers(0, 1_000), max_size=5),
    st.booleans(),
)
def test_arbitrary_bytes_in_arbitrary_pieces_do_not_affect_other_clients(
    case: tuple[int, bytes], cuts: list[int], connected: bool
) -> None:
    version, data = case
    core = Core()
    witness = core.connect("a witness whose name no one guesses")
    witness.subscribe("#", qos=2)
    client = core.connect("c", version) if connected else core.wire(version)
    places = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    for start, stop in pairwise(places):
        client.send(data[start:stop])
        core.tick(0.1)
    client.version = client.connection.version
    client.received()  # everything sent out is made of packets
    witness.received()
    core.tick(30)
    assert witness.ping()
    publisher = core.connect("a publisher whose name no one guesses")
    publisher.publish("still/alive", b"yes")
    assert Publish(b"still/alive", b"yes") in witness.received()
    client.drop()
    core.tick(1e10)
    witness.received()
    assert witness.ping()


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([V5, V311]).flatmap(
        lambda version: st.tuples(st.just(version), st.lists(packets(version), max_size=6))
    ),
    st.lists(st.integers(0, 1_000), max_size=6),
)
def test_answers_do_not_depend_on_how_the_bytes_are_cut(
    case: tuple[int, list[object]], cuts: list[int]
) -> None:
    version, some = case
    data = b"".join(encode(packet, version) for packet in some)  # type: ignore[arg-type]
    places = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    answers = []
    for pieces in ([0, len(data)], places):
        core = Core()
        witness = core.connect("witness", version)
        witness.subscribe("#", qos=2)
        client = core.connect("client", version)
        for start, stop in pairwise(pieces):
            client.send(data[start:stop])
        answers.append((client.received(), client.closed, witness.received()))
    assert answers[0] == answers[1]

"""Words and frames: encoding and decoding any bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrite.protocols.line import frames
from pyrite.protocols.line.frames import FrameError


@given(st.binary(min_size=1))
def test_any_bytes_can_be_a_word(text: bytes) -> None:
    word = frames.escape(text)
    assert frames.unescape(word) == text
    assert word.split() == [word]
    assert b"\n" not in word


@given(st.binary(min_size=1), st.binary(), st.sampled_from(frames.COMMANDS))
def test_a_frame_is_a_line_and_a_payload_of_known_length(topic: bytes, payload: bytes, command: str) -> None:
    frame = frames.frame(command, topic, payload=payload, retain=True, left_out=False, id="a b")
    head, _, rest = frame.partition(b"\n")
    asked = frames.parse(head)
    assert asked.command == command
    assert asked.word(0, "a topic") == topic
    assert asked.number(1, "a length") == len(payload)
    assert asked.options(2, ("retain", "id")) == {"retain": "", "id": "a b"}
    assert rest == payload + b"\n"


@pytest.mark.parametrize("written", ["publish", "PUBLISH", "Publish", "pUBLISH"])
def test_commands_may_be_in_upper_or_lower_case(written: str) -> None:
    assert frames.parse(f"{written}  a   5 ".encode()) == ("Publish", [b"a", b"5"])


def test_an_invalid_frame_is_refused_with_the_reason() -> None:
    asked = frames.parse(b"Publish a% x50 colour=blue")
    with pytest.raises(FrameError, match="write %25 for %"):
        asked.word(0, "a topic")
    with pytest.raises(FrameError, match="a length, a number, not 'x50'"):
        asked.number(1, "a length")
    with pytest.raises(FrameError, match="'colour=blue' is unknown: expected retain, id"):
        asked.options(2, ("retain", "id"))
    with pytest.raises(FrameError, match="expected a colour"):
        asked.word(7, "a colour")
    with pytest.raises(FrameError, match="is not text"):
        frames.parse(b"Connect me user=%FF").options(1, ("user",))


def test_an_error_is_one_line() -> None:
    assert frames.error("a-code", "two\nlines  of\ttext") == b"Error a-code two lines of text\n"

"""Parsing of positions in a stream."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrite.storage.positions import Ago, Earliest, Latest, Offset, Position, Time, parse_position


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Earliest()),
        ("Latest", Latest()),
        ("now", Latest()),
        ("0", Offset(0)),
        (" 4711 ", Offset(4711)),
        ("00000000000000004711", Offset(4711)),
        (str(2**63 - 1), Offset(2**63 - 1)),
        ("-90s", Ago(90_000_000)),
        ("-15m", Ago(900_000_000)),
        ("-1h", Ago(3_600_000_000)),
        ("-7d", Ago(604_800_000_000)),
        ("-1h30m", Ago(5_400_000_000)),
        ("-0.5s", Ago(500_000)),
        ("1970-01-01", Time(0)),
        ("1970-01-02T00:00:00Z", Time(86_400_000_000)),
        ("1970-01-01T02:00:00+02:00", Time(0)),
        ("2026-11-15T20:06:24.161606Z", Time(1_794_773_184_161_606)),
        ("1969-12-31T23:59:59Z", Time(-1_000_000)),
    ],
)
def test_a_position_is_parsed(text: str, position: Position) -> None:
    assert parse_position(text) == position


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "-5",
        "5h",
        "-1w",
        "-1h-2m",
        "yesterday",
        "1e3",
        "+1",
        "٤",
        "-٤h",
        "2026-13-01",
        "2026-11-15T25",
        "-1.2.3s",
    ],
)
def test_an_invalid_position_is_explained(text: str) -> None:
    with pytest.raises(ValueError, match="is not a position: expected an offset"):
        parse_position(text)


@pytest.mark.parametrize("text", [str(2**63), "9" * 5_000])
def test_an_offset_beyond_63_bits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is too large for an offset"):
        parse_position(text)


def test_a_time_too_long_ago_is_refused() -> None:
    with pytest.raises(ValueError, match="is too long ago"):
        parse_position(f"-{'9' * 400}d")


@given(st.text())
def test_any_text_parses_or_raises_value_error(text: str) -> None:
    with suppress(ValueError):
        parse_position(text)


@given(st.integers(0, 10**6), st.sampled_from("smhd"))
def test_durations_are_exact(number: int, unit: str) -> None:
    seconds = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[unit]
    assert parse_position(f"-{number}{unit}") == Ago(number * seconds * 1_000_000)

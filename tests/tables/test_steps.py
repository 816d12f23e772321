"""The steps from the files that a table holds to those it should hold."""

from __future__ import annotations

import pytest

from pyrite.tables.steps import Held, Step, steps


def files(*names: str) -> dict[str, Held]:
    """Return files by names as in "10-20": their first offset, and where they end."""
    found = {}
    for name in names:
        base, end = map(int, name.split("-"))
        found[name] = Held(base, end - base)
    return found


@pytest.mark.parametrize(
    ("held", "wanted", "first", "expected"),
    [
        ([], [], 0, []),
        (["0-5"], ["0-5"], 0, []),
        ([], ["0-5", "5-9"], 0, [Step("append", ("0-5", "5-9"), ())]),
        (["0-5"], ["0-5", "5-9"], 0, [Step("append", ("5-9",), ())]),
        (["0-5", "5-9"], ["0-9"], 0, [Step("replace", ("0-9",), ("0-5", "5-9"))]),
        (["0-5", "5-9"], ["5-9"], 5, [Step("delete", (), ("0-5",))]),
        (["0-5", "5-9"], [], 9, [Step("delete", (), ("0-5", "5-9"))]),
        # All at once: the oldest is dropped, two are merged, another is new.
        (
            ["0-5", "5-9", "9-12"],
            ["5-12", "12-15"],
            5,
            [
                Step("delete", (), ("0-5",)),
                Step("replace", ("5-12",), ("5-9", "9-12")),
                Step("append", ("12-15",), ()),
            ],
        ),
        # A file was merged with one that the table never had: rows are added.
        (["0-5"], ["0-9"], 0, [Step("overwrite", ("0-9",), ("0-5",))]),
        # A segment in the middle was removed by somebody.
        (["0-5", "5-9"], ["0-5"], 0, [Step("delete", (), ("5-9",))]),
    ],
)
def test_each_change_is_a_step(held: list[str], wanted: list[str], first: int, expected: list[Step]) -> None:
    assert list(steps(files(*held), files(*wanted), first)) == expected

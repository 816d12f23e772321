"""Types and parser settings that several subcommands share."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable


def positive_int(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a number above 0, not {text!r}")


def number_between(smallest: float, largest: float, what: str) -> Callable[[str], float]:
    """Return an argument type for numbers in a range; `what` completes "expected ..."."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if smallest <= number <= largest:
            return number
        raise argparse.ArgumentTypeError(f"expected {what}, not {text!r}")

    return parse


def accept_times_ago(parser: argparse.ArgumentParser) -> None:
    """Let -1h be the value of an option, as -1 is."""
    parser._negative_number_matcher = re.compile(r"-[0-9]")

"""Port numbers on the command line."""

from __future__ import annotations

from argparse import ArgumentTypeError


def port(text: str) -> int:
    """Read a port, as argparse asks for it."""
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise ArgumentTypeError(f"{text!r} is not a port, which is a number from 0 to 65535")
    return int(text)

"""Escapes control characters in text from clients, before it is printed on a terminal."""

from __future__ import annotations

import sys
from unicodedata import category

_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control characters (C0, DEL, C1), format characters (such as those that change the text direction),
surrogates, and line separators."""


def printable(text: str, keep: str = "") -> str:
    """Escape control and format characters as in JSON (`\\u001b`), except those in `keep`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join([_shown(one) if category(one) in _UNSAFE and one not in keep else one for one in text])


def printable_bytes(data: bytes) -> bytes:
    """The same for bytes; line ends and tabs stay, invalid UTF-8 becomes `\\xff`."""
    return printable(data.decode("utf-8", "backslashreplace"), keep="\n\t").encode()


def on_terminal() -> bool:
    """Return True if standard output is a terminal; output to files and programs is not escaped."""
    return sys.stdout is not None and sys.stdout.isatty()


def _shown(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join([f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)])

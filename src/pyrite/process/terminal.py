"""Text from others on a terminal: control characters are shown, and change nothing there."""

from __future__ import annotations

import sys
from unicodedata import category

_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control characters (C0, DEL, C1), format characters (also those that turn the direction of text around),
surrogates, and separators of lines."""


def printable(text: str, keep: str = "") -> str:
    """Return a text with its control and format characters written as in JSON (`\\u001b`), but for `keep`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join([_shown(one) if category(one) in _UNSAFE and one not in keep else one for one in text])


def printable_bytes(data: bytes) -> bytes:
    """The same for bytes: line ends and tabs stay, a byte that is not UTF-8 is written as `\\xff`."""
    return printable(data.decode("utf-8", "backslashreplace"), keep="\n\t").encode()


def on_terminal() -> bool:
    """Tell whether standard output is a terminal: what goes to a file or another program stays as it is."""
    return sys.stdout is not None and sys.stdout.isatty()


def _shown(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join([f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)])

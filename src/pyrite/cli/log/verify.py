"""`pyrite log verify`: check every byte of a data folder."""

from __future__ import annotations

import argparse

from pyrite.cli.log import running
from pyrite.journal.verify import verify


def run(args: argparse.Namespace) -> int:
    """Print every damage; return 1 if there is any."""
    streams = len(running.folders(args))
    checked = 0
    with running.progress("verifying") as show:

        def seen(done: int, total: int) -> None:
            nonlocal checked
            checked = done
            show(done, total)

        damages = verify(args.data, args.stream, seen)
    for damage in damages:
        print(damage)
    lost = sum(damage.last - damage.first + 1 for damage in damages if damage.first >= 0)
    found = (
        "no damage"
        if not damages
        else f"damage at {_plural(len(damages), 'place')}, {_plural(lost, 'message')} lost"
    )
    print(f"{_plural(streams, 'stream')}, {_plural(checked, 'byte')}: {found}")
    return 1 if damages else 0


def _plural(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"

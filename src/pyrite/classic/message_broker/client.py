"""The client of the message broker: that of Dallal over TCP, but every subscriber gets every message.

client.py HOST PORT publish TOPIC MESSAGE
client.py HOST PORT subscribe TOPIC...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic.dallal.client import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    return run(arguments, usual_port=1370, latest=False, udp=False)


if __name__ == "__main__":
    sys.exit(main())

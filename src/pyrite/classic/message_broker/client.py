"""The client of the message broker: Dallal's client over TCP, but every subscriber receives every message.

client.py HOST PORT publish TOPIC MESSAGE
client.py HOST PORT subscribe TOPIC...
"""

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # run or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

from collections.abc import Sequence

from pyrite.classic import common
from pyrite.classic.dallal.client import run


@common.program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    return run(arguments, usual_port=1370, latest=False, udp=False)


if __name__ == "__main__":
    sys.exit(main())

"""The client of the message broker, which is that of Dallal.

client.py HOST PORT publish TOPIC MESSAGE
client.py HOST PORT subscribe TOPIC...
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # started or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

from pyrite.classic.dallal.client import main

if __name__ == "__main__":
    sys.exit(main())

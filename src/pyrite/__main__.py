"""Run the `pyrite` command with `python -m pyrite`."""

import sys

from pyrite.cli.main import main

sys.exit(main())

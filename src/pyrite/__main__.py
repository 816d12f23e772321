"""`python -m pyrite` is the `pyrite` command."""

import sys

from pyrite.cli.main import main

sys.exit(main())

"""What the classic programs share: finding Pyrite, and starting a broker on the classic ports.

Importing it from a program that was started with any Python starts that program again with the one in which
`make run` has installed Pyrite.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

try:
    import uvloop  # noqa: F401
except ImportError:
    python = ROOT / ".venv" / "bin" / "python"
    if not python.exists() or python.parents[1] == Path(sys.prefix):
        sys.exit(f"Pyrite is not set up: run `make run` once in {ROOT}")
    os.execv(python, [str(python), *sys.argv])  # noqa: S606


from pyrite.broker.catalog import TopicOptions
from pyrite.cli.serve import start
from pyrite.protocols.line.options import LineOptions
from pyrite.server.config import Config


def serve(
    listeners: Sequence[str],
    data: str | None = None,
    topics: TopicOptions | None = None,
    say: Callable[[str], None] | None = None,
    line: LineOptions | None = None,
) -> int:
    """Run a broker on some listeners until Ctrl-C, and return its exit code.

    Without a data folder it keeps everything in memory; `say` is told what it would else print.
    """
    config = Config(listen=list(listeners), ephemeral=data is None, log_level="warning")
    config.data = data or config.data
    config.topics = topics or config.topics
    config.line = line or config.line
    return start(config, say or partial(print, flush=True))

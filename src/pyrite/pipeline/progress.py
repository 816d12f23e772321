"""Progress of pipeline runs on the terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console

from pyrite.pipeline.run import RunResult

_OVER = ("completed", "failed", "skipped", "stopped", "excluded")


class ProgressDisplay:
    """Shows running flows on a terminal, or prints each finished one; always prints a line per run."""

    def __init__(self, now: Console, lasting: Console) -> None:
        self._now = now
        self._lasting = lasting
        self._status = now.status("starting Spark")
        self._running: dict[str, float] = {}
        self._runs = 0
        self._noted = ""

    def __enter__(self) -> Self:
        self._status.start()
        if not self._now.is_terminal:
            self._now.print("starting Spark")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def step(self, flow: str, what: str) -> None:
        """Update the progress of a flow."""
        if what in ("starting", "running"):
            self._running.setdefault(flow, time.monotonic())
        elif what in _OVER:
            began = self._running.pop(flow, None)
            took = "" if began is None else f" in {time.monotonic() - began:.1f} s"
            if what != "completed" or not self._now.is_terminal:
                self._now.print(f"  {flow} {what}{took}", highlight=False)
        self._status.update(f"run {self._runs + 1}: {', '.join(self._running) or 'planning'}")

    def done(self, outcome: RunResult) -> None:
        """Print the result of a run."""
        self._runs += 1
        self._noted = ""
        counts = (
            f"{name} {rows:,}" + (f" (+{outcome.added[name]:,})" if outcome.added[name] > 0 else "")
            for name, rows in sorted(outcome.rows.items())
        )
        self._lasting.print(
            f"run {self._runs}: {outcome.seconds:.1f} s; {', '.join(counts)}", highlight=False, soft_wrap=True
        )
        self._status.update("waiting for messages")

    def note(self, text: str) -> None:
        """Print a note, unless it was the last one printed."""
        if text != self._noted:
            self._noted = text
            self._now.print(text, highlight=False, soft_wrap=True)

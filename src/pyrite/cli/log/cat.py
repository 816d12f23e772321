"""`pyrite log cat`: print the messages of a stream."""

from __future__ import annotations

import argparse
import select as polling
import signal
import sys
import time

from pyrite.cli.log import rows, running
from pyrite.process.terminal import on_terminal, printable_bytes
from pyrite.storage.bulk import matching, resolve
from pyrite.storage.positions import Position, Time
from pyrite.storage.query import FOREVER
from pyrite.storage.segment import Damage
from pyrite.storage.stream import StreamReader

_POLL_INTERVAL = 200
"""Milliseconds between two polls of `--follow`."""
_COMMIT_DELAY = 1.0
"""Seconds after which a published message is in the log, even with QoS 0."""


def run(args: argparse.Namespace) -> int:
    """Print the selected messages; return 1 if any are damaged."""
    reader = StreamReader(running.folders(args)[0])
    try:
        return _Cat(reader, args).run()
    except KeyboardInterrupt:
        return 0


class _Cat:
    def __init__(self, reader: StreamReader, args: argparse.Namespace) -> None:
        self._reader = reader
        self._filters: list[bytes] = [args.filter] if args.filter else []
        self._format = rows.json_lines if args.json else rows.lines
        self._follow: bool = args.follow
        self._left: int = args.count or FOREVER
        self._offset = resolve(args.start, reader)
        self._until: Position | None = args.stop
        self._stop = resolve(args.stop, reader)
        self._output = sys.stdout.buffer
        self._terminal = on_terminal()
        self._damaged = False
        self._interrupted = False

    def run(self) -> int:
        if self._follow:
            # A KeyboardInterrupt that is raised in a destructor is lost, so set a flag instead.
            signal.signal(signal.SIGINT, self._interrupt)
        while self._left and not self._interrupted:
            over = not self._follow or not self._more_is_to_come()
            self._print_what_is_there()
            self._output.flush()
            if over or not self._left or self._reader_is_gone():
                break
        return 1 if self._damaged else 0

    def _more_is_to_come(self) -> bool:
        """True if messages may still be added to the requested range."""
        if not isinstance(self._until, Time):
            return self._offset < self._stop
        now = time.time()
        self._stop = resolve(self._until, self._reader)
        return now < self._until.seconds(now) + _COMMIT_DELAY

    def _interrupt(self, number: int, frame: object) -> None:
        """Stop after the current batch at the first Ctrl-C, and at once at the second."""
        self._interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _print_what_is_there(self) -> None:
        for piece in self._reader.read(self._offset, self._stop):
            if self._interrupted:
                return
            if isinstance(piece, Damage):
                self._output.flush()
                running.report(piece)
                self._damaged = True
                self._offset = piece.last + 1
                continue
            self._offset = piece.column(0)[-1].as_py() + 1
            batch = matching(piece, self._filters).slice(0, self._left)
            lines = self._format(batch)
            self._output.writelines(map(printable_bytes, lines) if self._terminal else lines)
            self._left -= batch.num_rows
            if not self._left:
                return

    def _reader_is_gone(self) -> bool:
        """Wait for the poll interval; return True if the reader of our output is gone."""
        poller = polling.poll()
        poller.register(self._output.fileno(), 0)
        return bool(poller.poll(_POLL_INTERVAL))

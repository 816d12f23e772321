"""Reads of the log for the broker: pieces of a stream, single messages, and offsets by time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from pyrite.broker.core import Broker
from pyrite.broker.journal import Piece, Stream, Wanted
from pyrite.broker.message import Batch
from pyrite.journal.log import Log
from pyrite.journal.reading import RawPiece, fetch, read_piece
from pyrite.journal.workers import Worker
from pyrite.process.fair import NO_ONE, Asker
from pyrite.storage.segment import Damage

logger = logging.getLogger(__name__)

RETRY_DELAY = 0.1
"""Seconds after which a part of the log that could not be read is read again."""
MAX_FETCH_ATTEMPTS = 50
"""Attempts to read single messages, after which they count as lost."""

FetchResult = tuple[dict[int, tuple[Batch, int]], list[int]]
"""Messages by offset, with their times; and the offsets that are left."""


class LogReader:
    """Reads streams in a thread of its own, and answers in the event loop's."""

    def __init__(
        self,
        log: Log,
        worker: Worker,
        wall: Callable[[], float],
        later: Callable[[float, Callable[[], object]], object] | None,
    ) -> None:
        self._log = log
        self.worker = worker
        self._wall = wall
        self._later = later

    def begin(self, broker: Broker) -> None:
        """Serve a broker."""
        self._broker = broker

    def read(
        self,
        stream: Stream,
        offset: int,
        stop: int,
        wanted: Wanted,
        answer: Callable[[Piece], object],
        asker: Asker = NO_ONE,
        at_once: bool = False,
    ) -> None:
        """Read some of a stream's messages from `offset` up to `stop`; `at_once`: in this thread."""
        log = self._log

        def done(piece: RawPiece | None) -> None:
            if piece is None:
                self.retry(lambda: answer(Piece([], offset)))
            else:
                answer(Piece(self._unexpired(stream, piece), piece.next_offset))

        def job() -> RawPiece | None:
            try:
                return read_piece(log.readers[stream], offset, stop, wanted, log.report)
            except OSError as error:
                logger.error("stream %s: cannot be read at offset %d: %s", stream.name, offset, error)
                return None

        def unreadable(_: Exception) -> None:
            return None

        if at_once:
            try:
                piece = read_piece(log.readers_here[stream], offset, stop, wanted, log.report)
            except OSError:
                pass  # the reading thread retries
            else:
                done(piece)
                return
        self.worker.run(job, done, unreadable, asker)

    def retry(self, call: Callable[[], object]) -> None:
        """Call after a while, so that other reads need not wait for a part that cannot be read."""
        if self._later is None:
            time.sleep(RETRY_DELAY)
            call()
        else:
            self._later(RETRY_DELAY, call)

    def _unexpired(self, stream: Stream, piece: RawPiece) -> list[Batch]:
        return [
            batch
            for batch in (self.place(stream, *found) for found in piece.found)
            if batch.expires_at is None or batch.expires_at > self._broker.now
        ]

    def place(self, stream: Stream, batch: Batch, offset: int, when: int) -> Batch:
        """Set where a batch from the log lies, its time, and its expiry on the broker's clock."""
        batch.lies_in(stream, offset)
        batch.timestamp = when
        properties = batch.properties
        if properties is not None and properties.message_expiry is not None:
            left = when / 1e6 + properties.message_expiry - self._wall()
            batch.expires_at = self._broker.now + left
        return batch

    def fetch(
        self,
        stream: Stream,
        offsets: Sequence[int],
        answer: Callable[[dict[int, Batch]], object],
        asker: Asker = NO_ONE,
    ) -> None:
        """Read single messages of a stream by offset; the answer omits messages that no longer exist."""
        _Fetch(self, stream, offsets, answer, asker).read()

    def fetch_now(self, stream: Stream, offsets: list[int]) -> FetchResult:
        """Read as many of these messages as fit into a turn."""
        return fetch(self._log.readers[stream], offsets, self._log.report)

    def offset_at(self, stream: Stream, when: float, answer: Callable[[int], object]) -> None:
        """Find the first message that arrived at `when` (seconds since 1970) or later."""
        reader, routed = self._log.readers[stream], stream.routed

        def job() -> int:
            try:
                return min(reader.offset_at(int(when * 1e6)), routed)
            except OSError as error:
                logger.error("stream %s: cannot be read: %s", stream.name, error)
                return 0

        # If it cannot be found, rather send too much than too little.
        self.worker.run(job, answer, lambda error: 0)

    def earliest(self, stream: Stream) -> int:
        """Return the offset of the oldest stored message."""
        try:
            return min(self._log.readers_here[stream].first, stream.routed)
        except OSError as error:
            logger.error("stream %s: cannot be read: %s", stream.name, error)
            return 0  # readers skip what no longer exists

    def read_all(self, stream: Stream, offset: int) -> Iterator[pa.RecordBatch]:
        """Yield everything from an offset on, in this thread. For the start."""
        for piece in self._log.readers_here[stream].read(offset, stream.routed):
            if isinstance(piece, Damage):
                self._log.report(piece)
            else:
                yield piece


class _Fetch:
    """Single messages of a stream that are read in turns.

    An object, because closures that call each other form a reference cycle, which would keep the session with
    everything in flight until the garbage collector runs.
    """

    __slots__ = ("_answer", "_asker", "_attempts", "_batches", "_left", "_reader", "_stream")

    def __init__(
        self,
        reader: LogReader,
        stream: Stream,
        offsets: Sequence[int],
        answer: Callable[[dict[int, Batch]], object],
        asker: Asker,
    ) -> None:
        self._reader = reader
        self._stream = stream
        self._answer = answer
        self._asker = asker
        self._left = sorted(set(offsets))
        self._batches: dict[int, Batch] = {}
        self._attempts = 0

    def read(self) -> None:
        """Read some more of them."""
        self._reader.worker.run(self._job, self._done, lambda error: ({}, []), self._asker)

    def _job(self) -> FetchResult | None:
        self._attempts += 1
        try:
            return self._reader.fetch_now(self._stream, self._left)
        except OSError as error:
            logger.error("stream %s: cannot be read: %s", self._stream.name, error)
            return ({}, []) if self._attempts == MAX_FETCH_ATTEMPTS else None

    def _done(self, result: FetchResult | None) -> None:
        if result is None:  # the messages may exist all the same
            self._reader.retry(self.read)
            return
        found, self._left = result
        for offset, (batch, when) in found.items():
            self._batches[offset] = self._reader.place(self._stream, batch, offset, when)
        if self._left:
            self._attempts = 0
            self.read()
        else:
            self._answer(self._batches)

"""Retransmit messages to one UDP client, with growing delays, until their Ack arrives."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyrite.protocols.line.datagram_connection import DatagramConnection

WINDOW = 32
"""Unacknowledged messages of one client."""
MIN_RETRY_DELAY = 0.2
"""Seconds until the first retransmission; each later delay is twice as long."""
MAX_RETRY_DELAY = 5.0
"""Seconds between two retransmissions at most."""
MAX_QUEUED_BYTES = 1024 * 1024
"""Bytes of messages that wait for room in the window."""


class _Sent(NamedTuple):
    frame: bytes
    due: float
    delay: float


class Retransmission:
    """The messages that a client has not acknowledged, and those that wait for room in the window."""

    __slots__ = ("_connection", "_queue", "_queued_bytes", "_sent")

    def __init__(self, connection: DatagramConnection) -> None:
        self._connection = connection
        self._sent: dict[int, _Sent] = {}
        self._queue: deque[tuple[int, bytes]] = deque()
        self._queued_bytes = 0

    def send_or_queue(self, number: int, frame: bytes) -> bool:
        """Send a message, or queue it if the window is full. Return false if the queue is full too."""
        if len(self._sent) < WINDOW and not self._queue:
            self.send(number, frame)
        elif self._queued_bytes + len(frame) <= MAX_QUEUED_BYTES:
            self._queue.append((number, frame))
            self._queued_bytes += len(frame)
        else:
            return False
        return True

    def send(self, number: int, frame: bytes) -> None:
        """Send a message; if the client seems to be away, send it when the client returns."""
        connection = self._connection
        now, alive = connection.broker.now, connection.is_alive
        self._sent[number] = _Sent(frame, now + MIN_RETRY_DELAY if alive else now, MIN_RETRY_DELAY)
        if alive:
            connection.write(frame)
        connection.count_sent(1, len(frame))
        connection.set_timer()

    def acknowledged(self, number: int) -> None:
        """Stop retransmitting a message, and send queued messages."""
        self._sent.pop(number, None)
        while self._queue and len(self._sent) < WINDOW:
            number, frame = self._queue.popleft()
            self._queued_bytes -= len(frame)
            self.send(number, frame)

    @property
    def next_due(self) -> float | None:
        """Time of the next retransmission; None if no message waits for its Ack."""
        return min([sent.due for sent in self._sent.values()], default=None)

    def send_due(self) -> None:
        """Retransmit the messages that were not acknowledged in time."""
        now = self._connection.broker.now
        for number, sent in list(self._sent.items()):
            if sent.due <= now:
                delay = min(2 * sent.delay, MAX_RETRY_DELAY)
                self._sent[number] = _Sent(sent.frame, now + delay, delay)
                self._connection.write(sent.frame)

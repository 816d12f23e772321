"""The broker's running figures: plain counters, raised a batch at a time."""

from __future__ import annotations

from collections import deque

COMMIT_TIMES = 10_000
"""Commits of which it is remembered how long they took."""


class Figures:
    """Counters since the start, and a few of the present."""

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "clients_expired",
        "clients_maximum",
        "commit_times",
        "connections",
        "connections_accepted",
        "connections_refused",
        "log_bytes",
        "log_commits",
        "log_lost",
        "log_messages",
        "longest_block",
        "longest_log_block",
        "messages_dropped",
        "messages_stored",
        "packets_received",
        "packets_sent",
        "publish_bytes_received",
        "publish_bytes_sent",
        "publish_received",
        "publish_sent",
        "publishers_throttled",
        "quota_refused",
        "retained_refused",
        "sessions_behind",
    )

    def __init__(self) -> None:
        self.bytes_received = 0
        self.bytes_sent = 0
        self.clients_expired = 0
        self.clients_maximum = 0
        self.commit_times: deque[float] = deque(maxlen=COMMIT_TIMES)
        """Seconds that each of the last commits took; whoever has looked at them takes them out."""
        self.connections = 0
        """Clients connected now."""
        self.connections_accepted = 0
        self.connections_refused = 0
        self.log_bytes = 0
        """Bytes of messages, as they came, that were written to the log."""
        self.log_commits = 0
        self.log_lost = 0
        """Messages with QoS 0 that the log could not keep, as the disk did not take them."""
        self.log_messages = 0
        """Messages that were written to the log."""
        self.longest_block = 0.0
        """The longest time, in seconds, that the event loop was busy with one thing."""
        self.longest_log_block = 0.0
        """The same, for what the log had to be done in the event loop: routing and acknowledging."""
        self.messages_dropped = 0
        """Messages not sent to a client: its share of memory was full, or it takes none so large."""
        self.messages_stored = 0
        """Messages that wait in sessions' queues now."""
        self.packets_received = 0
        """Packets other than PUBLISH."""
        self.packets_sent = 0
        """Packets other than PUBLISH."""
        self.publish_bytes_received = 0
        self.publish_bytes_sent = 0
        self.publish_received = 0
        self.publish_sent = 0
        self.publishers_throttled = 0
        """Times that a publisher had to wait, as its user's rate quota was spent."""
        self.quota_refused = 0
        """Connections, subscriptions, consumers, messages and reads that a user's quota refused."""
        self.retained_refused = 0
        self.sessions_behind = 0
        """Clients connected now that are sent messages from the log: they were away, or are too slow."""

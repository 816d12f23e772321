"""The broker's counters, incremented once per batch."""

from __future__ import annotations

from collections import deque

COMMIT_TIMES = 10_000
"""Commits whose duration is remembered."""


class Figures:
    """Counters since the start, and some current values."""

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
        """Duration of each of the last commits in seconds; the reader removes them."""
        self.connections = 0
        """Connected clients."""
        self.connections_accepted = 0
        self.connections_refused = 0
        self.log_bytes = 0
        """Bytes of messages, as received, that were written to the log."""
        self.log_commits = 0
        self.log_lost = 0
        """QoS 0 messages that could not be written to the log."""
        self.log_messages = 0
        """Messages that were written to the log."""
        self.longest_block = 0.0
        """The longest time, in seconds, for which one task blocked the event loop."""
        self.longest_log_block = 0.0
        """The same, for the log's work in the event loop: routing and acknowledging."""
        self.messages_dropped = 0
        """Messages not sent to a client: its buffer was full, or the message was too large for it."""
        self.messages_stored = 0
        """Messages in sessions' queues."""
        self.packets_received = 0
        """Received packets other than PUBLISH."""
        self.packets_sent = 0
        """Sent packets other than PUBLISH."""
        self.publish_bytes_received = 0
        self.publish_bytes_sent = 0
        self.publish_received = 0
        self.publish_sent = 0
        self.publishers_throttled = 0
        """Times that a publisher was throttled by its user's rate quota."""
        self.quota_refused = 0
        """Connections, subscriptions, consumers, messages and reads refused by a user's quota."""
        self.retained_refused = 0
        self.sessions_behind = 0
        """Connected clients that read from the log, because they were away or are slow."""

"""The broker's running figures: plain counters, raised a batch at a time."""

from __future__ import annotations


class Figures:
    """Counters since the start, and a few of the present."""

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "clients_expired",
        "clients_maximum",
        "connections",
        "connections_accepted",
        "connections_refused",
        "log_lost",
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
        "retained_refused",
    )

    def __init__(self) -> None:
        self.bytes_received = 0
        self.bytes_sent = 0
        self.clients_expired = 0
        self.clients_maximum = 0
        self.connections = 0
        """Clients connected now."""
        self.connections_accepted = 0
        self.connections_refused = 0
        self.log_lost = 0
        """Messages with QoS 0 that the log could not keep, as the disk did not take them."""
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
        self.retained_refused = 0

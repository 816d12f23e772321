"""How much of everything one client, or all together, may take."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(slots=True)
class Limits:
    """The broker's limits. Each is a key of the same name in the [limits] table of pyrite.toml."""

    max_packet_size: int = 16 * MIB
    """Largest packet accepted, in bytes; the protocol's own maximum is 268,435,460."""
    max_connections: int = 100_000
    """Connections at one time."""
    max_connections_per_address: int = 100_000
    """Connections at one time from one IP address."""
    connect_timeout: float = 10.0
    """Seconds in which a new connection must have sent its CONNECT."""
    max_inflight: int = 4_000
    """Messages in flight to one client, if it does not ask for fewer itself (at most 65,535)."""
    receive_maximum: int = 65_535
    """QoS 1 and 2 messages that one client may have unacknowledged towards the broker."""
    max_subscriptions_per_client: int = 10_000
    """Subscriptions of one session."""
    max_reads_per_user: int = 100
    """Reads of the log and waiting pulls of one user at a time, over HTTP and Flight."""
    max_topic_levels: int = 128
    """Levels of a topic or filter."""
    max_created_topics: int = 10_000_000
    """Topics that may be created."""
    max_retained_messages: int = 1_000_000
    """Retained messages in all."""
    max_waiting_bytes: int = 16 * MIB
    """Bytes that may wait for one slow client. QoS 0 beyond it is dropped and counted."""
    max_queued_messages: int = 100_000
    """QoS 1 and 2 messages that may wait for one session, slow or away. Beyond it, new ones are dropped."""
    max_queued_bytes: int = 64 * MIB
    """Bytes of QoS 1 and 2 messages that may wait for one session."""
    max_buffered_bytes: int = MIB
    """Bytes of QoS 1 and 2 messages that wait in memory for one slow client; the rest waits in the log."""
    max_sessions: int = 1_000_000
    """Sessions, connected or not. Beyond it, new clients are refused."""
    max_staged_bytes: int = 16 * 1024 * MIB
    """Bytes that the sinks of one user may have staged and not committed, where users are told apart."""

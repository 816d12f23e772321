"""The limits of one client, and of all clients together."""

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
    before_login: int = 64 * 1024
    """Largest packet or line, in bytes, from a client that has not logged in; also the most that is read
    from it at a time."""
    connect_timeout: float = 10.0
    """Seconds within which a new connection must send its CONNECT."""
    max_inflight: int = 4_000
    """Messages in flight to one client, unless it requests fewer (at most 65,535)."""
    receive_maximum: int = 65_535
    """QoS 1 and 2 messages of one publisher that the broker has not acknowledged."""
    max_subscriptions_per_client: int = 10_000
    """Subscriptions of one session."""
    max_topic_levels: int = 128
    """Levels of a topic or filter."""
    max_created_topics: int = 10_000_000
    """Topics that may be created."""
    max_retained_messages: int = 1_000_000
    """Retained messages in all."""
    retained_bytes: int = 1024 * MIB
    """Bytes of retained messages in all: topics, payloads and properties."""
    max_waiting_bytes: int = 16 * MIB
    """Bytes that may wait for one slow client. Further QoS 0 messages are dropped and counted."""
    max_queued_messages: int = 100_000
    """QoS 1 and 2 messages that may wait for one session, slow or away. Further ones are dropped."""
    max_queued_bytes: int = 64 * MIB
    """Bytes of QoS 1 and 2 messages that may wait for one session."""
    max_buffered_bytes: int = MIB
    """Bytes of QoS 1 and 2 messages that wait in memory for one slow client; the rest waits in the log."""
    max_sessions: int = 1_000_000
    """Sessions, connected or not. Further clients are refused."""
    max_staged_bytes: int = 16 * 1024 * MIB
    """Bytes that the sinks of one user may have staged and not committed, if users are authenticated."""

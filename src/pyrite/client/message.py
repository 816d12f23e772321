"""What a client sends and receives: messages, wills, topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Properties = dict[str, Any]
"""MQTT 5 properties by name: `content_type`, `message_expiry`, `response_topic`, `correlation_data`,
`payload_format`, `subscription_identifier` (a list), and `user_property`, a list of pairs of strings."""


@dataclass(slots=True)
class Message:
    """A message that was received."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    """Whether this is the topic's retained value, sent because of a new subscription."""
    properties: Properties = field(default_factory=dict)
    dup: bool = field(default=False, compare=False)
    """Whether the broker may have sent it before."""
    # What the acknowledgement needs: the packet's id, the connection that it came with, and the number of
    # iterators that have not taken it yet.
    packet_id: int = field(default=0, repr=False, compare=False)
    connection: int = field(default=0, repr=False, compare=False)
    copies: int = field(default=1, repr=False, compare=False)

    def user_property(self, name: str) -> str | None:
        """Return the last value of a user property, or None."""
        found = None
        for key, value in self.properties.get("user_property", ()):
            if key == name:
                found = value
        return found


@dataclass(slots=True)
class Pulled:
    """A message that a consumer pulled from the log."""

    topic: str
    payload: bytes
    place: str
    """Where it is in the log, as in `default:17`: what is acknowledged."""
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that the broker knows, and the value that is kept (retained) there, if any."""

    name: str
    kept: bytes | None = None


@dataclass(slots=True)
class Will:
    """What the broker publishes should the client vanish; `properties` may have `will_delay`, in seconds."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=dict)

"""Messages, wills and topics, as the client sends and receives them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Properties = dict[str, Any]
"""MQTT 5 properties by name: `content_type`, `message_expiry`, `response_topic`, `correlation_data`,
`payload_format`, `subscription_identifier` (a list), and `user_property`, a list of pairs of strings.
"""


@dataclass(slots=True)
class Message:
    """A received message."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    """True for a retained message sent because of a new subscription."""
    properties: Properties = field(default_factory=dict)
    dup: bool = field(default=False, compare=False)
    """True if the broker may have sent it before."""
    # For the acknowledgement: packet identifier, number of the connection, and how many iterators have not
    # taken the message yet.
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
    """A message fetched from a consumer."""

    topic: str
    payload: bytes
    place: str
    """Stream and offset, such as `default:17`; acknowledgements name it."""
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic known to the broker; `kept` is the payload of its retained message, or None."""

    name: str
    kept: bytes | None = None


@dataclass(slots=True)
class Will:
    """The message that the broker publishes if the client disconnects unexpectedly.

    `properties` may contain `will_delay`, in seconds.
    """

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=dict)

"""What the client's side of MQTT deals in: messages on their way out, and what comes of a broker's bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyrite.client.message import Message
from pyrite.protocols.mqtt.packets import Connack


class Outgoing:
    """A message on its way to the broker."""

    __slots__ = ("alias", "first", "note", "packet_id", "payload", "properties", "released", "sent", "topic")

    def __init__(self, first: int, topic: bytes, payload: bytes, properties: bytes, alias: int = 0) -> None:
        self.first = first
        """The first byte of the packet, without DUP."""
        self.topic = topic
        self.payload = payload
        self.properties = properties
        """Encoded, with their length and without a topic alias; nothing at all in 3.1.1."""
        self.alias = alias
        """What stands for the topic from the second message of a connection on; 0 for nothing."""
        self.packet_id = 0
        self.sent = False
        self.released = False
        """Whether the broker has said PUBREC: the message is its own now."""
        self.note: Any = None
        """Whatever the caller wants to find again when the message is settled."""


@dataclass(slots=True)
class Connected:
    """The broker accepted; a CONNACK that refuses comes as Refusal."""

    connack: Connack


@dataclass(slots=True)
class Refusal:
    """The broker did not accept."""

    connack: Connack


@dataclass(slots=True)
class Settled:
    """A QoS 1 or 2 message is done with: taken by the broker, or refused (a reason of 0x80 or more)."""

    outgoing: Outgoing
    reason: int = 0
    text: str = ""


@dataclass(slots=True)
class Answered:
    """The answer to a SUBSCRIBE or UNSUBSCRIBE."""

    packet_id: int
    reasons: list[int]
    text: str


@dataclass(slots=True)
class Ended:
    """The broker sent DISCONNECT."""

    reason: int
    text: str


Event = Connected | Refusal | Message | Settled | Answered | Ended

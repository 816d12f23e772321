"""Events of the protocol core, and messages being published."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from pyrite.client.message import Message
from pyrite.protocols.mqtt.packets import Connack


class Outgoing:
    """A message being published."""

    __slots__ = ("alias", "first", "note", "packet_id", "payload", "properties", "released", "sent", "topic")

    def __init__(self, first: int, topic: bytes, payload: bytes, properties: bytes, alias: int = 0) -> None:
        self.first = first
        """The first byte of the packet, without DUP."""
        self.topic = topic
        self.payload = payload
        self.properties = properties
        """Encoded with their length, without a topic alias; empty in MQTT 3.1.1."""
        self.alias = alias
        """The topic alias, used from the second message of a connection on; 0 for none."""
        self.packet_id = 0
        self.sent = False
        self.released = False
        """True after PUBREC: the broker owns the message now."""
        self.note: Any = None
        """For the caller, to find its state again when the message is settled; a Tally for many messages."""


class Tally:
    """Messages that were published together: one future for all of them."""

    __slots__ = ("done", "left")

    def __init__(self, left: int, done: asyncio.Future[None]) -> None:
        self.left = left
        """How many are not settled yet."""
        self.done = done


@dataclass(slots=True)
class Connected:
    """CONNACK with success."""

    connack: Connack


@dataclass(slots=True)
class ConnectRefused:
    """CONNACK with a refusal."""

    connack: Connack


@dataclass(slots=True)
class Settled:
    """A QoS 1 or 2 message was acknowledged, or refused (a reason of 0x80 or more)."""

    outgoing: Outgoing
    reason: int = 0
    text: str = ""


@dataclass(slots=True)
class Answered:
    """SUBACK or UNSUBACK."""

    packet_id: int
    reasons: list[int]
    text: str


@dataclass(slots=True)
class Ended:
    """DISCONNECT from the broker."""

    reason: int
    text: str


Event = Connected | ConnectRefused | Message | Settled | Answered | Ended

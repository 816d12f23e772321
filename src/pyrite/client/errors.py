"""Errors of the clients, all below ClientError."""

from __future__ import annotations

from collections.abc import Mapping

from pyrite.errors import PyriteError
from pyrite.protocols.mqtt.reasons import describe


class ClientError(PyriteError):
    """Base class: a call of the client failed."""


class ConnectError(ClientError):
    """Connecting failed: nothing listens, the peer is no broker, or the broker refused.

    `reason` is the broker's reason code (a return code in MQTT 3.1.1), or None if no broker answered; `said`
    is its reason string. An error of the operating system is the `__cause__`.
    """

    def __init__(self, text: str, reason: int | None = None, said: str = "") -> None:
        super().__init__(text)
        self.reason = reason
        self.said = said


class ConnectionLost(ClientError):
    """The connection was lost while a call waited for an answer.

    `reason` is the reason code of the broker's DISCONNECT, or None if there was none; `said` is its reason
    string.
    """

    def __init__(self, text: str, reason: int | None = None, said: str = "") -> None:
        super().__init__(text)
        self.reason = reason
        self.said = said


class Refused(ClientError):
    """The broker refused; `reason` is its reason code, `said` its reason string."""

    def __init__(self, text: str, reason: int, said: str = "") -> None:
        super().__init__(text)
        self.reason = reason
        self.said = said


class PublishError(Refused):
    """The broker refused a message, or its CONNACK rules the message out."""


class SubscribeError(Refused):
    """The broker granted none of the subscriptions; `refused` has the reason code of each filter."""

    def __init__(self, text: str, refused: Mapping[str, int], said: str = "") -> None:
        super().__init__(text, next(iter(refused.values())), said)
        self.refused = dict(refused)


class RequestError(ClientError):
    """A request to Pyrite was refused, or not answered."""


def reason_text(reason: int, said: str = "") -> str:
    """Return the name of a reason code, with the broker's reason string."""
    try:
        words = f"{describe(reason)} (0x{reason:02X})"
    except ValueError:
        words = f"reason code 0x{reason:02X}"
    return f"{words}: {said}" if said else words

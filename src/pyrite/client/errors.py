"""What can go wrong, as a client sees it: one small hierarchy below ClientError."""

from __future__ import annotations

from collections.abc import Mapping

from pyrite.protocols.mqtt.reasons import describe


class ClientError(Exception):
    """Something that a client asked for did not happen; the text says what and why."""


class ConnectError(ClientError):
    """There is no connection: nothing listens, the peer is no broker, or the broker refused.

    `reason` is the broker's reason code, of MQTT 5 or of 3.1.1, or None if no broker answered; `said` is what
    the broker said besides. The error that the system gave, if any, is the `__cause__`.
    """

    def __init__(self, text: str, reason: int | None = None, said: str = "") -> None:
        super().__init__(text)
        self.reason = reason
        self.said = said


class ConnectionLost(ClientError):
    """The connection has ended, and with it what was waiting for an answer.

    `reason` is the reason code of the broker's DISCONNECT, or None if there was none; `said` is what the
    broker said besides.
    """

    def __init__(self, text: str, reason: int | None = None, said: str = "") -> None:
        super().__init__(text)
        self.reason = reason
        self.said = said


class Refused(ClientError):
    """The broker said no; `reason` is its reason code, `said` what it said besides."""

    def __init__(self, text: str, reason: int, said: str = "") -> None:
        super().__init__(text)
        self.reason = reason
        self.said = said


class PublishError(Refused):
    """The broker did not take a message, or is known not to take such."""


class SubscribeError(Refused):
    """The broker granted none of the subscriptions asked for; `refused` has the reason for each filter."""

    def __init__(self, text: str, refused: Mapping[str, int], said: str = "") -> None:
        super().__init__(text, next(iter(refused.values())), said)
        self.refused = dict(refused)


class RequestError(ClientError):
    """A request that only Pyrite answers was refused, or not answered."""


def reason_text(reason: int, said: str = "") -> str:
    """Return a reason code in words, with what the broker said besides."""
    try:
        words = f"{describe(reason)} (0x{reason:02X})"
    except ValueError:
        words = f"reason 0x{reason:02X}"
    return f"{words}: {said}" if said else words

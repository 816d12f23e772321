"""The options of a client, and the CONNECT packet they result in."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from pyrite.client.address import Address
from pyrite.client.message import Properties, Will
from pyrite.protocols.mqtt.packets import V5, V31, V311, Connect, WillMessage

DEFAULT_SESSION_EXPIRY = 300
"""Default session expiry in seconds, for a client that reconnects."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options of a client; see `Client` for their meaning."""

    address: Address
    clean_start: bool
    session_expiry: int | None
    keep_alive: int
    username: str | None
    password: bytes | None
    tls: ssl.SSLContext | None
    will: Will | None
    properties: Properties
    version: int
    reconnect: bool
    longest_pause: float
    max_waiting: int
    timeout: float
    bind_address: str

    def __post_init__(self) -> None:
        if self.version not in (V5, V311, V31):
            raise ValueError("version must be 5, or 4 for MQTT 3.1.1, or 3 for 3.1")
        if self.max_waiting < 1:
            raise ValueError("max_waiting must be at least 1")
        if self.version != V5 and self.clean_start and self.session_expiry:
            raise ValueError("MQTT 3.1.1 cannot combine clean_start with session_expiry")
        if self.version != V5 and self.properties:
            raise ValueError("properties need MQTT 5 (version=5)")
        if self.tls is not None and not self.address.is_encrypted:
            raise ValueError(f"tls needs an mqtts:// or wss:// URL, not {self.address.scheme}://")

    def connect_packet(self, client_id: str, clean_start: bool) -> Connect:
        """Build the CONNECT packet."""
        properties: Properties = {}
        if self.version == V5:
            expiry = self.session_expiry
            if expiry is None:
                expiry = DEFAULT_SESSION_EXPIRY if self.reconnect else 0
            properties = {"session_expiry": expiry, "receive_maximum": min(self.max_waiting, 65_535)}
            properties |= self.properties
        else:
            clean_start = not self.session_expiry
        will = None
        if self.will is not None:
            said = self.will
            will = WillMessage(said.topic.encode(), said.payload, said.qos, said.retain, said.properties)
        return Connect(
            client_id,
            self.version,
            clean_start,
            self.keep_alive,
            will,
            self.username,
            self.password,
            properties,
        )

    def disconnect_properties(self) -> Properties:
        """Return the properties of DISCONNECT: without a session_expiry option, the session ends here."""
        return {"session_expiry": 0} if self.version == V5 and self.session_expiry is None else {}

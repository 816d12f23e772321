"""URLs of listeners."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from pyrite.process.endpoints import is_loopback

DEFAULT_PORTS = {
    "mqtt": 1883,
    "mqtts": 8883,
    "ws": 8083,
    "wss": 8084,
    "line": 1373,
    "udp": 1234,
    "flight": 8815,
    "flights": 8816,
    "http": 8080,
    "https": 8443,
}
_EXPECTED = (
    "expected mqtt://host:port, mqtts://host:port, ws://host:port/path, wss://host:port/path, "
    "line://host:port, udp://host:port, flight://host:port, flights://host:port, http://host:port, "
    "https://host:port or unix:///path"
)


@dataclass(frozen=True, slots=True)
class Listener:
    """An address to listen on, and its protocol."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def tls(self) -> bool:
        """True for TLS."""
        return self.scheme in ("mqtts", "wss", "flights", "https")

    @property
    def websocket(self) -> bool:
        """True for MQTT over WebSocket."""
        return self.scheme in ("ws", "wss")

    @property
    def local(self) -> bool:
        """True if only this machine can reach the listener."""
        return self.scheme == "unix" or is_loopback(self.host)

    @property
    def flight(self) -> bool:
        """True for Arrow Flight."""
        return self.scheme in ("flight", "flights")

    @property
    def http(self) -> bool:
        """True for the HTTP API and dashboard."""
        return self.scheme in ("http", "https")

    def at_port(self, port: int) -> Listener:
        """Return the same listener with the actual port."""
        return replace(self, port=port)

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse_listener(url: str) -> Listener:
    """Parse a listener's URL; raise ValueError, which says what is expected, if it is invalid."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may contain a password
        raise ValueError(f"invalid URL; {_EXPECTED}") from None
    if parts.scheme == "unix":
        if parts.netloc or not parts.path.startswith("/") or parts.path == "/":
            raise ValueError("expected unix:///path/of/the/socket")
        return Listener("unix", "", 0, parts.path)
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(_EXPECTED)
    if parts.username is not None or parts.password is not None:
        raise ValueError("a listener has no user name or password")
    websocket = parts.scheme in ("ws", "wss")
    if parts.path not in ("", "/") and not websocket:
        raise ValueError(f"only ws:// and wss:// have a path; {_EXPECTED}")
    path = (parts.path or "/mqtt") if websocket else ""
    return Listener(parts.scheme, parts.hostname, DEFAULT_PORTS[parts.scheme] if port is None else port, path)

"""Addresses of brokers, and the URLs they are written as."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443, "unix": 0}


@dataclass(frozen=True, slots=True)
class Address:
    """A broker's URL, parsed."""

    scheme: str
    host: str
    port: int
    path: str
    username: str | None
    password: str | None

    @property
    def is_encrypted(self) -> bool:
        """True for URLs with TLS."""
        return self.scheme in ("mqtts", "wss")

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def shown(url: str) -> str:
    """Return a URL without user name and password, for error messages."""
    return re.sub("//.*@", "//(not shown)@", url)


def parse_address(url: str) -> Address:
    """Parse a URL; raises ValueError."""
    said = repr(shown(url))
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may quote the password
        raise ValueError(f"invalid URL {said}: expected a host, and a port from 1 to 65535") from None
    if parts.scheme not in PORTS:
        raise ValueError(f"invalid URL {said}: expected mqtt://, mqtts://, ws://, wss:// or unix:///path")
    if parts.scheme == "unix":
        if parts.netloc or not parts.path:
            raise ValueError(f"invalid URL {said}: expected unix:///path")
        return Address("unix", "", 0, unquote(parts.path), None, None)
    if not parts.hostname:
        raise ValueError(f"invalid URL {said}: no host")
    path = parts.path
    if parts.scheme in ("ws", "wss"):
        path = (path or "/mqtt") + (f"?{parts.query}" if parts.query else "")
    elif path.strip("/"):
        raise ValueError(f"invalid URL {said}: {parts.scheme}:// takes no path")
    else:
        path = ""
    username = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    return Address(parts.scheme, parts.hostname, port or PORTS[parts.scheme], path, username, password)

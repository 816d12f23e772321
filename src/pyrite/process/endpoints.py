"""Listening sockets and their addresses, for the broker and its child processes."""

from __future__ import annotations

import errno
import secrets
import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

MAX_PORT_ATTEMPTS = 1_000
"""Ports to try before giving up."""


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach a host."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL like an Origin header, without a default port.

    Raise ValueError if it is not an HTTP URL.
    """
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    if default is None or not parts.hostname or parts.username is not None or parts.query or parts.fragment:
        raise ValueError("expected a URL such as https://broker.example/pyrite")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port not in (None, default) else "")


def bind(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Open listening TCP sockets on all addresses of `host`, with the same port."""
    found: list[socket.socket] = []
    try:
        for family, kind, protocol, _, where in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            listening = socket.socket(family, kind, protocol)
            found.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind((where[0], port, *where[2:]))
            listening.listen(backlog)
            port = listening.getsockname()[1]
    except OSError:
        for listening in found:
            listening.close()
        raise
    return found


def free_port() -> int:
    """Return a free port of this machine below those that the system gives to others in the meantime."""
    for _ in range(MAX_PORT_ATTEMPTS):
        port = 10_000 + secrets.randbelow(20_000)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise OSError(errno.EADDRINUSE, "no free port was found between 10000 and 29999")


def bind_unix(path: str, backlog: int) -> socket.socket:
    """Open a listening Unix socket."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening

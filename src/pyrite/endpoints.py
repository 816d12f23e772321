"""Sockets that listen, and the addresses they are at: for the broker, and for the processes beside it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine, as only itself can reach it."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Open listening sockets for every address of `host`, all at one port."""
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


def new_context(minimum_version: str) -> ssl.SSLContext:
    """Make the TLS settings of a listener; "1.3" for that version alone, else from 1.2 on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if minimum_version == "1.3" else ssl.TLSVersion.TLSv1_2
    return context


def trust_clients(context: ssl.SSLContext, authorities: str, required: bool) -> None:
    """Take certificates of clients that these authorities have signed; OSError if there are none there."""
    context.load_verify_locations(authorities)
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL


def certificate_user(transport: asyncio.BaseTransport, where: str) -> str | None:
    """Return the name of the user in the certificate that a client has shown; `where` is "subject" or "san".

    None if it has shown none, or names are not taken from there.
    """
    shown = transport.get_extra_info("peercert") or {}
    names: list[str] = []
    if where == "san":
        names = [value for kind, value in shown.get("subjectAltName", ()) if kind in ("email", "DNS", "URI")]
    elif where == "subject":
        names = [value for part in shown.get("subject", ()) for kind, value in part if kind == "commonName"]
    return names[0] if names else None

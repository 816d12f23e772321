"""Who is at the other end of a connection."""

from __future__ import annotations

from typing import NamedTuple


class Peer(NamedTuple):
    """An address, and the name in the certificate that was shown, if names are taken from there."""

    address: str
    certificate: str | None = None


def peer_without_tls(told: str) -> Peer:
    """Return whom gRPC means, as in ipv4:192.0.2.1:50000."""
    return Peer(told.partition(":")[2].rpartition(":")[0].strip("[]") or "unknown")

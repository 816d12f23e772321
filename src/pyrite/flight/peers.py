"""Who is at the other end of a connection."""

from __future__ import annotations

from typing import NamedTuple


class Peer(NamedTuple):
    """An address, and the name in the certificate that was shown, if names are taken from there."""

    address: str
    certificate: str | None = None

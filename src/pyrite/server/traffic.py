"""Bytes received and sent over a TCP connection, as the kernel counts them."""

from __future__ import annotations

import socket
import struct
import sys

_BYTES_ACKED_AT = 120
"""Offset of tcpi_bytes_acked in `struct tcp_info`; tcpi_bytes_received follows."""


def traffic(descriptor: int) -> tuple[int, int] | None:
    """Return the bytes received and sent over a socket; None if the kernel does not count them.

    The kernel counts them anyway, so the hot path does not have to.
    """
    if sys.platform != "linux" or descriptor < 0:
        return None
    try:
        with socket.socket(fileno=descriptor) as endpoint:
            try:
                state = endpoint.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED_AT + 16)
            finally:
                endpoint.detach()
        sent, received = struct.unpack_from("<QQ", state, _BYTES_ACKED_AT)
    except (OSError, struct.error):
        return None  # a Unix socket, or a kernel that does not count
    return received, sent

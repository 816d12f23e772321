"""Plain sockets without a broker: a sender that does not stop, and a receiver that never reads."""

from __future__ import annotations

import socket
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from studies import machine
from studies.capture import Capture
from studies.load import STEP, Timeline, publish_frames

HEAD = b"Raw"
PIECES_AT_ONCE = 2_000
"""Datagrams or messages that are sent in one go, at most, to catch up."""


@dataclass
class Raw:
    """What became of what was sent."""

    protocol: str
    due: int = 0
    """How many the sender would have sent by then, had nothing held it back."""
    sent: int = 0
    """How many the sender's kernel took."""
    refused: int = 0
    """How many the sender's kernel did not take."""
    on_the_wire: int = 0
    """UDP: datagrams in the capture; TCP: packets with data."""
    capture_dropped: int = 0
    kept: int = 0
    """How many were there when the receiver read in the end."""
    dropped: int = 0
    """How many the receiver's kernel threw away."""
    counted: int = 0
    """UDP: by how much the kernel's counter of such losses rose (RcvbufErrors, of the whole machine)."""
    buffer: int = 0
    """The receive buffer, in bytes, as the kernel counts them."""
    zero_windows: int = 0
    sent_over_time: Timeline = field(default_factory=Timeline)
    dropped_over_time: Timeline = field(default_factory=Timeline)

    def figures(self) -> dict[str, Any]:
        """Return what is worth writing down."""
        return {key: value for key, value in asdict(self).items() if not key.endswith("over_time")}


def raw_udp(seconds: float, size: int, rate: int, folder: Path) -> Raw:
    """Send datagrams to a socket that no one reads from; count what it has kept in the end."""
    found = Raw("UDP")
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        port = receiver.getsockname()[1]
        sender.connect(("127.0.0.1", port))
        sender.setblocking(False)
        found.buffer = receiver.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        with Capture(folder / "udp.pcapng", f"udp dst port {port}", seconds=seconds + 60) as capture:
            counted = machine.udp_errors()
            began = time.monotonic()
            while (passed := time.monotonic() - began) < seconds:
                found.due = int(passed * rate)
                count = min(found.due - found.sent - found.refused, PIECES_AT_ONCE)
                for frame in publish_frames(HEAD, found.sent, count, size):
                    try:
                        sender.send(frame)
                        found.sent += 1
                    except (BlockingIOError, ConnectionRefusedError):
                        found.refused += 1
                found.sent_over_time.add(found.sent)
                found.dropped_over_time.add(machine.udp_drops(port))
                time.sleep(STEP)
        found.dropped = machine.udp_drops(port)
        found.counted = machine.udp_errors() - counted
        receiver.setblocking(False)
        while True:
            try:
                receiver.recv(65_536)
                found.kept += 1
            except BlockingIOError:
                break
    found.on_the_wire = len(capture.rows("frame.number"))
    found.capture_dropped = capture.dropped
    return found


def raw_tcp(seconds: float, size: int, rate: int, folder: Path) -> Raw:
    """Send the same over TCP, as far as it is taken; count what the receiver finds in the end."""
    found = Raw("TCP")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with Capture(folder / "tcp.pcapng", f"tcp port {port}", seconds=seconds + 60) as capture:
            sender = socket.create_connection(("127.0.0.1", port))
            receiver, _ = listening.accept()
            with sender, receiver:
                sender.setblocking(False)
                found.buffer = receiver.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
                _press(found, sender, seconds, size, rate)
                found.kept = _read_all(sender, receiver, size)
    rows = capture.rows("tcp.dstport", "tcp.len", "tcp.analysis.zero_window")
    found.on_the_wire = sum(target == str(port) and length != "0" for target, length, _ in rows)
    found.zero_windows = sum(bool(zero) for _, _, zero in rows)
    found.capture_dropped = capture.dropped
    return found


def _press(found: Raw, sender: socket.socket, seconds: float, size: int, rate: int) -> None:
    """Send what is due, as far as the kernel takes it; the last may be taken in part, and is not counted."""
    rest = b""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        found.due = int(passed * rate)
        while found.sent < found.due:
            if not rest:
                rest = publish_frames(HEAD, found.sent, 1, size)[0]
            try:
                rest = rest[sender.send(rest) :]
            except BlockingIOError:
                break
            found.sent += not rest
        found.sent_over_time.add(found.sent)
        found.dropped_over_time.add(0)
        time.sleep(STEP)
    found.refused = found.due - found.sent


def _read_all(sender: socket.socket, receiver: socket.socket, size: int) -> int:
    """Close the sender's side, and return how many messages the receiver finds."""
    sender.shutdown(socket.SHUT_WR)
    received = 0
    receiver.settimeout(10)
    while data := receiver.recv(1024 * 1024):
        received += len(data)
    return received // len(publish_frames(HEAD, 0, 1, size)[0])

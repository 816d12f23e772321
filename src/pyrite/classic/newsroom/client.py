"""A client of the newsroom: a publisher or a subscriber."""

from __future__ import annotations

import socket
import threading
import time
from queue import Empty, SimpleQueue

TIMEOUT = 10.0
"""Seconds that a reply may take."""
ROLES = {"p": "Publisher", "s": "Subscriber"}


class Client:
    """One client: `Client("s", "1")` is Subscriber 1."""

    def __init__(self, action: str, id: str, host: str = "127.0.0.1", port: int = 12345) -> None:
        if action not in ROLES:
            raise ValueError(f"unknown action {action!r}: expected 'p' or 's'")
        self.name = f"{ROLES[action]} {id}"
        self.received: list[tuple[str, str]] = []
        """What came, as pairs of subject and content."""
        self._where = (host, port)
        self._came = threading.Condition()
        self._replies: SimpleQueue[str] = SimpleQueue()
        self._socket: socket.socket | None = None
        self._open()
        self.reply = self.send_message(f"CONN {self.name}")
        """The server's last reply to coming."""

    def _open(self) -> None:
        self._socket = socket.create_connection(self._where, timeout=TIMEOUT)
        self._socket.settimeout(None)
        threading.Thread(target=self._read, args=(self._socket,), daemon=True).start()

    def send_message(self, text: str) -> str:
        """Send a line, and return the reply."""
        if self._socket is None:
            raise ConnectionError(f"{self.name} is not connected")
        self._socket.sendall(text.encode() + b"\n")
        try:
            return self._replies.get(timeout=TIMEOUT)
        except Empty:
            raise TimeoutError(f"no reply came within {TIMEOUT:g} s") from None

    def publish(self, subject: str, content: str) -> str:
        """Publish on a subject, and return the reply: PUB_ACK, or ERROR and a text."""
        return self.send_message(f"PUB {subject} {content}")

    def subscribe(self, subject: str) -> str:
        """Subscribe to a subject, and return the reply: SUB_ACK, or ERROR and a text."""
        return self.send_message(f"SUB {subject}")

    def disconnect(self) -> str:
        """Leave, and return the reply: DISC_ACK."""
        reply = self.send_message("DISC")
        self._close()
        return reply

    def reconnect(self) -> str:
        """Come back, and return the reply: CON_ACK. What was missed follows, but for what is too old."""
        self._open()
        self.reply = self.send_message(f"RECON {self.name}")
        return self.reply

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def wait_for(self, count: int, timeout: float = TIMEOUT) -> list[tuple[str, str]]:
        """Wait until so many messages have come, and return all there are."""
        end = time.monotonic() + timeout
        with self._came:
            while len(self.received) < count and self._came.wait(max(0.0, end - time.monotonic())):
                pass
            return list(self.received)

    def _read(self, connected: socket.socket) -> None:
        try:
            with connected.makefile(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    word, _, rest = line.rstrip("\n").partition(" ")
                    if word != "MSG":
                        self._replies.put(line.rstrip("\n"))
                        continue
                    number, _, message = rest.partition(" ")
                    subject, _, content = message.partition(" ")
                    with self._came:
                        self.received.append((subject, content))
                        connected.sendall(f"ACK {number}\n".encode())  # before anyone sees it, and leaves
                        self._came.notify_all()
        except (OSError, ValueError):
            pass  # the connection is over

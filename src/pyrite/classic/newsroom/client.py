"""A client of the newsroom: a publisher or a subscriber."""

from __future__ import annotations

import socket
import threading
import time
from queue import Empty, SimpleQueue

TIMEOUT = 10.0
"""Timeout for a reply, in seconds."""
ROLES = {"p": "Publisher", "s": "Subscriber"}
ACKNOWLEDGED = ("SUB", "RECON", "DISC")
"""Actions that are sent back before they are acknowledged."""


class Client:
    """One client: `Client("s", "1")` is Subscriber 1."""

    def __init__(self, action: str, id: str, host: str = "127.0.0.1", port: int = 12345) -> None:
        if action not in ROLES:
            raise ValueError(f"unknown action {action!r}: expected 'p' or 's'")
        self.name = f"{ROLES[action]} {id}"
        self.received: list[tuple[str, str]] = []
        """The received messages, as pairs of subject and content."""
        self._where = (host, port)
        self._came = threading.Condition()
        self._replies: SimpleQueue[str | None] = SimpleQueue()
        self._socket: socket.socket | None = None
        self._open()

    def _open(self) -> None:
        host, port = self._where
        try:
            self._socket = socket.create_connection(self._where, timeout=TIMEOUT)
        except OSError as error:
            raise ConnectionError(f"cannot connect to {host}:{port}: {error.strerror or error}") from None
        self._socket.settimeout(None)
        self._replies = SimpleQueue()
        threading.Thread(target=self._read, args=(self._socket, self._replies), daemon=True).start()
        self.reply = self._reply()
        """The server's last answer to connecting: CONN_ACK, or CON_ACK after `reconnect`."""

    def send_message(self, message: str) -> str:
        """Send a message; returns the response: the message itself, its acknowledgement, or an error."""
        if self._socket is None:
            raise ConnectionError(f"{self.name} is not connected")
        if "\n" in message or "\r" in message:
            raise ValueError("a message is one line")
        try:
            self._socket.sendall(message.encode() + b"\n")
        except OSError:
            raise ConnectionError("the server has ended the connection") from None
        response = self._reply()
        if response == message and message.split("|")[:2][-1] in ACKNOWLEDGED:
            response = self._reply()
        return response

    def _reply(self) -> str:
        try:
            reply = self._replies.get(timeout=TIMEOUT)
        except Empty:
            raise TimeoutError(f"no reply came within {TIMEOUT:g} s") from None
        if reply is None:
            self._close()
            raise ConnectionError("the server has ended the connection")
        return reply

    def publish(self, subject: str, content: str) -> str:
        """Publish on a subject; returns the message sent back, or ERROR and a text."""
        return self.send_message(f"{self.name}|PUB|{subject}|{content}")

    def subscribe(self, subject: str) -> str:
        """Subscribe to a subject; returns SUB_ACK, or ERROR and a text."""
        return self.send_message(f"{self.name}|SUB|{subject}")

    def disconnect(self) -> str:
        """Disconnect; returns DISC_ACK."""
        response = self.send_message(f"{self.name}|DISC")
        self._close()
        return response

    def reconnect(self) -> str:
        """Reconnect; returns CON_ACK. Missed messages follow, unless they are too old."""
        self._close()
        self._open()
        self.reply = self.send_message(f"{self.name}|RECON")
        return self.reply

    def _close(self) -> None:
        """Shut the connection down; the reading thread closes the socket."""
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed by the server
            self._socket = None

    def wait_for(self, count: int, timeout: float = TIMEOUT) -> list[tuple[str, str]]:
        """Wait for a number of messages; returns all received so far."""
        end = time.monotonic() + timeout
        with self._came:
            while len(self.received) < count and self._came.wait(max(0.0, end - time.monotonic())):
                pass
            return list(self.received)

    def _read(self, connected: socket.socket, replies: SimpleQueue[str | None]) -> None:
        try:
            with connected, connected.makefile(encoding="utf-8", errors="replace", newline="\n") as lines:
                for line in lines:
                    word, _, message = line.rstrip("\n").partition("|")
                    if word != "MSG":
                        replies.put(line.rstrip("\n"))
                        continue
                    subject, _, content = message.partition("|")
                    with self._came:
                        self.received.append((subject, content))
                        self._came.notify_all()
        except (OSError, ValueError):
            pass  # the connection has ended
        replies.put(None)

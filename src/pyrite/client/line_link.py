"""The connection of a line protocol client: sending commands, sorting what arrives, and staying alive.

One thread reads: it answers Ping, and separates answers from messages. Another sends Ping, and reports a
missing Pong. Over UDP, a command is sent again until it is answered. A broker that does not know the client
any more, as after a restart, is sent the commands that restore its session.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pyrite.client.errors import ClientError
from pyrite.protocols.line import frames

KEEP_ALIVE_PREFIX = b"alive-"
"""Prefix of the word in keep-alive Pings. Over UDP, a broker that does not know the sender answers with a
Ping of its own if that is not longer."""
RETRY_INTERVAL = 0.5
"""Seconds after which a command is sent again over UDP."""
MAX_UNANSWERED = 2_000
"""Maximum number of unanswered commands when many are sent at once."""
MAX_SEEN = 1_000
"""Message numbers remembered over UDP, to drop duplicates."""


class LineError(ClientError):
    """The broker answered with an Error, whose code is `code`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class LineMessage(NamedTuple):
    """A received message."""

    topic: str
    payload: bytes
    retain: bool = False
    number: int | None = None
    """The number to acknowledge it with, or None if it needs no acknowledgement."""


class Command(NamedTuple):
    """A command and the start of its answer."""

    frame: bytes
    answer: tuple[str, ...]


class LineLink:
    """A TCP connection, or a UDP socket, to a broker.

    `restore` yields the commands that restore the client's session, for a broker that has forgotten a UDP
    client. `notice` is called from a thread of the link, with errors that no command caused, and when Pong is
    missing or comes back.
    """

    def __init__(
        self,
        host: str,
        port: int,
        udp: bool,
        timeout: float,
        ping_interval: float,
        restore: Callable[[], Iterator[Command]],
        notice: Callable[[str], object],
    ) -> None:
        self.timeout = timeout
        self.messages: queue.SimpleQueue[LineMessage | None] = queue.SimpleQueue()
        """Received messages; None at the end of the connection."""
        self.lists: deque[bytes] = deque()
        """Payloads of List answers."""
        self.pulled: list[LineMessage] | None = None
        """The messages of the pull under way, if any."""
        self.closed = False
        self.last_error = ""
        """The last error that the broker reported."""
        self._udp = udp
        self._broker = f"{host}:{port}"
        self._ping_interval = ping_interval
        self._restore = restore
        self._notice = notice
        self._socket = _open_socket(host, port, udp, timeout)
        self._sending = threading.Lock()
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[tuple[frames.Line, int] | None] = queue.SimpleQueue()
        """Answers, and how many times in a row each arrived."""
        self._seen: deque[int] = deque(maxlen=MAX_SEEN)
        self._forgotten = False
        """True if the broker has forgotten this client and its subscriptions."""
        self._away = False
        """True if the last Ping was not answered in time."""
        self._ponged_at = 0.0
        """Time of the last Pong that answered a keep-alive Ping."""
        self._wake = threading.Event()
        """Set when the keep-alive thread has work before its next Ping."""
        threading.Thread(target=self._read, name="pyrite-line", daemon=True).start()
        threading.Thread(target=self._keep_alive, name="pyrite-ping", daemon=True).start()

    def close(self) -> None:
        """Send Disconnect and close the socket."""
        over, self.closed = self.closed, True
        self._wake.set()
        try:
            if not over:
                self._send(frames.line("Disconnect"))
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # already closed by the broker
        self._socket.close()

    # Sending

    def _send(self, data: bytes) -> None:
        with self._sending:
            self._socket.sendall(data)

    def acknowledge(self, message: LineMessage) -> None:
        if message.number is not None:
            try:
                self._send(frames.line("Ack", message.number))
            except OSError:
                pass  # the broker will deliver it again

    def ask(self, asked: bytes, *expected: str, request: str | None = None) -> frames.Line:
        """Send a command and return its answer; over UDP, send it again until the answer arrives."""
        if self._udp and len(asked) > frames.MAX_DATAGRAM:
            raise LineError(
                "too-long", f"{len(asked)} bytes do not fit into a datagram of {frames.MAX_DATAGRAM}"
            )
        with self._asking:
            self._discard_answers()
            if self.closed:
                raise LineError("closed", self.last_error or "the broker ended the connection")
            deadline = time.monotonic() + self.timeout
            while True:
                try:
                    self._send(asked)
                except OSError as error:
                    if not self._udp:
                        raise LineError("closed", self.last_error or str(error)) from None
                wait = deadline - time.monotonic()
                if wait <= 0:
                    raise TimeoutError(f"no answer came within {self.timeout:g} s")
                answer = self._wait(min(wait, RETRY_INTERVAL) if self._udp else wait, expected, request)
                if answer is not None:
                    return answer

    def ask_many(self, asked: Sequence[bytes], expected: str) -> None:
        """Send commands and count their answers, with a bounded number of them unanswered."""
        with self._asking:
            self._discard_answers()
            unanswered = 0
            for start in range(0, len(asked), MAX_UNANSWERED // 2):
                batch = asked[start : start + MAX_UNANSWERED // 2]
                try:
                    self._send(b"".join(batch))
                except OSError as error:
                    raise LineError("closed", self.last_error or str(error)) from None
                unanswered += len(batch)
                last = start + len(batch) == len(asked)
                while unanswered > (0 if last else MAX_UNANSWERED // 2):
                    answer, count = self._next_answer(self.timeout)
                    if answer.command == expected:
                        unanswered -= count

    def _discard_answers(self) -> None:
        """Discard duplicates, and answers to commands that timed out."""
        while not self._answers.empty():
            self._answers.get()

    def _next_answer(self, seconds: float) -> tuple[frames.Line, int]:
        try:
            found = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"no answer came within {seconds:g} s") from None
        if found is None:
            self._answers.put(None)
            raise LineError("closed", self.last_error or "the broker ended the connection")
        answer = found[0]
        if answer.command == "Error":
            text = b" ".join(answer.words[1:]).decode("utf-8", "replace")
            raise LineError(answer.words[0].decode("ascii", "replace") if answer.words else "", text)
        return found

    def _wait(self, seconds: float, expected: tuple[str, ...], request: str | None) -> frames.Line | None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                answer, _ = self._next_answer(left)
            except TimeoutError:
                return None
            if answer.command != expected[0]:
                continue
            if len(expected) > 1 and answer.words[:1] != [expected[1].encode()]:
                continue
            if request is not None and f"id={request}".encode() not in answer.words:
                continue
            return answer
        return None

    # Receiving

    def _read(self) -> None:
        waiting = b""
        try:
            while True:
                try:
                    data = self._socket.recv(1024 * 1024)
                except ConnectionRefusedError:
                    if self._udp and not self.closed:
                        continue  # nothing listens there at the moment
                    raise
                if not data and not self._udp:
                    break
                waiting = self._take(data if self._udp else waiting + data)
        except OSError:
            pass
        self.closed = True
        self._wake.set()
        self._answers.put(None)
        self.messages.put(None)

    def _take(self, data: bytes) -> bytes:
        """Handle complete frames and return the rest."""
        at = 0
        while True:
            stop = data.find(b"\n", at)
            if stop < 0:
                return data[at:]
            line = frames.parse(data[at:stop])
            size = frames.payload_size(line)
            if size is not None and len(data) < stop + size + 2:
                return data[at:]
            whole, at = data[at : stop + 1], stop + 1
            payload, count = b"", 1
            if size is not None:
                payload = data[at : at + size]
                at += size + 1
            else:
                while data[at : at + len(whole)] == whole:  # answers to many equal commands
                    at += len(whole)
                    count += 1
            if line.command:
                self._handle(line, payload, count)

    def _handle(self, line: frames.Line, payload: bytes, count: int) -> None:
        match line.command:
            case "Ping":
                if self._udp and next(self._restore(), None) is not None:
                    # Over UDP, a broker sends Ping only to addresses it does not know.
                    self._seen.clear()  # numbers start again
                    self._forgotten = True
                    self._wake.set()
                self._send(frames.line("Pong", *line.words))
            case "Pong" if line.words[:1] and line.words[0].startswith(KEEP_ALIVE_PREFIX):
                self._ponged_at = time.monotonic()
                if self._away:
                    self._wake.set()
            case "Message":
                self._receive(line, payload)
            case "List":
                self.lists.append(payload)
                self._answers.put((line, 1))
            case "Error":
                self.last_error = b" ".join(line.words[1:]).decode("utf-8", "replace")
                if self._udp and not self._asking.locked():  # over TCP, the connection ends for this reason
                    self._notice(self.last_error)
                self._answers.put((line, count))
            case _:
                self._answers.put((line, count))

    def _receive(self, line: frames.Line, payload: bytes) -> None:
        number = next((int(word[2:]) for word in line.words[2:] if word.startswith(b"n=")), None)
        topic = frames.unescape(line.words[0]).decode("utf-8", "replace")
        message = LineMessage(topic, payload, b"retain" in line.words[2:], number)
        if self._udp and number is not None:
            if number in self._seen:
                self.acknowledge(message)
                return
            self._seen.append(number)
        if self.pulled is not None and b"pull" in line.words[2:]:
            self.pulled.append(message)
        else:
            self.messages.put(message)

    def _keep_alive(self) -> None:
        """Send Ping at every interval; in between, handle what the reading thread has detected."""
        count, pinged_at = 0, 0.0
        next_ping = time.monotonic() + self._ping_interval
        while not self.closed:
            if self._wake.wait(max(0.0, next_ping - time.monotonic())):
                self._wake.clear()
                if not self.closed:
                    self._recover()
                continue
            if not self._away and self._ponged_at < pinged_at:
                self._away = True
                self._notice(f"no Pong came from {self._broker} within {self._ping_interval:g} s")
            if self._forgotten:
                self._wake.set()  # restoring the session failed; try again
            count += 1
            pinged_at = time.monotonic()
            next_ping = pinged_at + self._ping_interval
            try:
                self._send(frames.line("Ping", KEEP_ALIVE_PREFIX + b"%d" % count))
            except OSError:
                pass  # over UDP, the next Ping may arrive

    def _recover(self) -> None:
        """Restore the session if the broker has forgotten the client; report that the broker answers."""
        if self._forgotten:
            self._forgotten = False
            try:
                for command in self._restore():
                    self.ask(command.frame, *command.answer)
            except (LineError, TimeoutError) as error:
                self._forgotten = True
                if not self.closed:
                    self._notice(f"subscribing again on {self._broker} failed: {error}")
                return
            self._away = False
            self._notice(f"{self._broker} had forgotten this client: subscribed again")
        elif self._away:
            self._away = False
            self._notice(f"{self._broker} answers again")


def _open_socket(host: str, port: int, udp: bool, timeout: float) -> socket.socket:
    if udp:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        # A UDP broker cannot be probed for the address it listens on; prefer IPv4, as IPv6 alone is rare.
        family, kind, protocol, _, where = min(found, key=lambda one: one[0] != socket.AF_INET)
        opened = socket.socket(family, kind, protocol)
        opened.connect(where)
        return opened
    opened = socket.create_connection((host, port), timeout=timeout)
    opened.settimeout(None)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened

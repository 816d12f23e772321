"""A blocking client of the line protocol, over TCP or UDP: what the classic programs are made of.

    with LineClient("127.0.0.1", 1373) as client:
        client.subscribe("news")
        client.publish("news", b"hello")
        print(next(client.messages()))

One thread reads: it answers Ping, and sorts answers from messages. Another sends Ping, and reports when Pong
stays away. Over UDP a command is sent again until it is answered, and a broker that has forgotten the client,
as after a restart, is given its subscriptions again.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from pyrite.protocols.line import frames

TIMEOUT = 10.0
"""Seconds that an answer may take, unless said otherwise."""
PING = 10.0
"""Seconds between two Pings of a client, unless said otherwise."""
ALIVE = b"alive-"
"""Prefix of the word in these Pings. Over UDP, a broker that does not know the sender answers with a Ping of
its own if that is not longer."""
RETRY = 0.5
"""Seconds after which a command is sent again over UDP."""
WINDOW = 2_000
"""Commands that may be under way where many are sent."""
REMEMBERED = 1_000
"""Numbers of messages that are remembered, so that one that was sent twice is handed out once."""


class LineError(Exception):
    """The broker answered with an Error: `code` is its word for programs."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class LineMessage(NamedTuple):
    """A message that came."""

    topic: str
    payload: bytes
    retain: bool = False
    number: int | None = None
    """What it is acknowledged by, if it is to be."""


class LineClient:
    """One connection, or over UDP one address, of a client.

    `notice` is called, from a thread of the client's own, with what the broker said without being asked, and
    with a line when Pong stays away and when it comes again.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 1373,
        udp: bool = False,
        timeout: float = TIMEOUT,
        *,
        ping_interval: float = PING,
        notice: Callable[[str], object] | None = None,
    ) -> None:
        self.timeout = timeout
        self._udp = udp
        self._broker = f"{host}:{port}"
        self._ping_interval = ping_interval
        self._notice = notice or (lambda _: None)
        if udp:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
            # Nothing tells which of several addresses a broker listens on; it is rarely IPv6 alone.
            family, kind, protocol, _, where = min(found, key=lambda one: one[0] != socket.AF_INET)
            self._socket = socket.socket(family, kind, protocol)
            self._socket.connect(where)
        else:
            self._socket = socket.create_connection((host, port), timeout=timeout)
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sending = threading.Lock()
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[tuple[frames.Line, int] | None] = queue.SimpleQueue()
        """Answers, and how many times in a row each came."""
        self._messages: queue.SimpleQueue[LineMessage | None] = queue.SimpleQueue()
        self._pulled: list[LineMessage] | None = None
        self._lists: deque[bytes] = deque()
        self._seen: deque[int] = deque(maxlen=REMEMBERED)
        self._next_id = 0
        self.closed = False
        """Whether the connection is over."""
        self.last_error = ""
        """What the broker said last that no one had asked for."""
        self.answered_at = time.monotonic()
        """When something came last."""
        self._connect_frame: bytes | None = None
        """The Connect that resumes the session, if the client has named itself."""
        self._subscriptions: dict[str, bytes] = {}
        """By filter, the Subscribe that takes it up again."""
        self._forgotten = False
        """Whether the broker has forgotten this client, and its subscriptions."""
        self._away = False
        """Whether the last Ping was not answered in time."""
        self._ponged_at = 0.0
        """When the last Pong to a Ping of the keep-alive came."""
        self._wake = threading.Event()
        """Set when the keep-alive has something to do before its next Ping."""
        threading.Thread(target=self._read, name="pyrite-line", daemon=True).start()
        threading.Thread(target=self._keep_alive, name="pyrite-ping", daemon=True).start()

    # Commands

    def connect(
        self,
        client_id: str,
        resume: bool = False,
        ttl: int | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> bool:
        """Name the client; tell whether a session was there to be gone on with."""
        who = {"ttl": ttl, "user": user, "password": password}
        asked = frames.line("Connect", client_id, **{"resume" if resume else "clean": True}, **who)
        resumed = self._ask(asked, "Ack", "Connect").words[-1] == b"resumed"
        self._connect_frame = frames.line("Connect", client_id, resume=True, **who)
        return resumed

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> None:
        """Publish a message, and return when the broker has it on disk."""
        _check_topic(topic)
        self._next_id += 1
        request = str(self._next_id)
        asked = frames.frame("Publish", topic, payload=payload, retain=retain, id=request)
        self._ask(asked, "PubAck", request=request)

    def publish_many(self, topic: str, payloads: Sequence[bytes]) -> None:
        """Publish messages one after the other, without waiting for each; return when all are on disk."""
        self._ask_many([frames.frame("Publish", topic, payload=payload) for payload in payloads], "PubAck")

    def create_many(self, topics: Sequence[str]) -> None:
        """Create topics, without waiting for each; return when all are there."""
        for topic in topics:
            _check_topic(topic)
        self._ask_many([frames.line("Create", topic) for topic in topics], "Ack")

    def delete_many(self, topics: Sequence[str]) -> None:
        """Delete topics, without waiting for each; return when all are gone."""
        for topic in topics:
            _check_topic(topic)
        self._ask_many([frames.line("Delete", topic) for topic in topics], "Ack")

    def subscribe(
        self, topic_filter: str, ack: bool = False, latest: bool = False, start: str | None = None
    ) -> None:
        """Subscribe to a filter."""
        _check_topic(topic_filter)
        asked = frames.line("Subscribe", topic_filter, **{"ack": ack, "latest": latest, "from": start})
        self._ask(asked, "SubAck")
        self._subscriptions[topic_filter] = frames.line("Subscribe", topic_filter, ack=ack, latest=latest)

    def unsubscribe(self, topic_filter: str) -> None:
        """Unsubscribe from a filter."""
        self._ask(frames.line("Unsubscribe", topic_filter), "Ack", "Unsubscribe")
        self._subscriptions.pop(topic_filter, None)

    def create(self, topic: str, new: bool = False) -> None:
        """Create a topic; with `new`, raise LineError with the code "exists" if it already exists."""
        _check_topic(topic)
        self._ask(frames.line("Create", topic, new=new), "Ack", "Create")

    def delete(self, topic: str) -> None:
        """Delete a topic, and its kept value."""
        _check_topic(topic)
        self._ask(frames.line("Delete", topic), "Ack", "Delete")

    def topics(self, topic_filter: str = "#") -> list[tuple[str, bytes | None]]:
        """Return the topics that match a filter, each with its kept value if it has one."""
        self._ask(frames.line("List", topic_filter), "List")
        found: list[tuple[str, bytes | None]] = []
        for row in self._lists.popleft().splitlines():
            name, space, kept = row.partition(b" ")
            found.append((frames.unescape(name).decode(), frames.unescape(kept) if space else None))
        return found

    def register(self, name: str, topic_filter: str, start: str | None = None) -> None:
        """Make a consumer, or find it there."""
        _check_topic(topic_filter)
        self._ask(frames.line("Register", name, topic_filter, **{"from": start}), "Ack", "Register")

    def unregister(self, name: str) -> None:
        """Delete a consumer."""
        self._ask(frames.line("Unregister", name), "Ack", "Unregister")

    def pull(self, name: str, count: int = 1) -> list[LineMessage]:
        """Be given up to `count` messages by a consumer, and acknowledge them."""
        self._pulled = []
        try:
            self._ask(frames.line("Pull", name, count), "Ack", "Pull")
            pulled = self._pulled
        finally:
            self._pulled = None
        for message in pulled:
            self._acknowledge(message)
        return pulled

    def ping(self) -> None:
        """Return when the broker has answered."""
        self._ask(frames.line("Ping", "client"), "Pong")

    def messages(self, timeout: float | None = None) -> Iterator[LineMessage]:
        """Yield messages as they come, until the connection is over, or none came for `timeout` seconds.

        A message is acknowledged when the next is asked for.
        """
        while True:
            try:
                message = self._messages.get(timeout=timeout)
            except queue.Empty:
                return
            if message is None:
                self._messages.put(None)  # for whoever asks again
                return
            yield message
            self._acknowledge(message)

    def close(self) -> None:
        """End the connection."""
        over, self.closed = self.closed, True
        self._wake.set()
        try:
            if not over:
                self._send(frames.line("Disconnect"))
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it was over already
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Inside

    def _send(self, data: bytes) -> None:
        with self._sending:
            self._socket.sendall(data)

    def _acknowledge(self, message: LineMessage) -> None:
        if message.number is not None:
            try:
                self._send(frames.line("Ack", message.number))
            except OSError:
                pass  # then it comes again

    def _ask(self, asked: bytes, *expected: str, request: str | None = None) -> frames.Line:
        """Send a command and return its answer; over UDP, send it again until the answer comes."""
        if self._udp and len(asked) > frames.MAX_DATAGRAM:
            raise LineError(
                "too-long", f"{len(asked)} bytes do not fit into a datagram of {frames.MAX_DATAGRAM}"
            )
        with self._asking:
            while not self._answers.empty():
                self._answers.get()  # to what was given up, or sent twice
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
                answer = self._wait(min(wait, RETRY) if self._udp else wait, expected, request)
                if answer is not None:
                    return answer

    def _ask_many(self, asked: Sequence[bytes], expected: str) -> None:
        """Send commands and count their answers, with a bounded number of them under way."""
        with self._asking:
            while not self._answers.empty():
                self._answers.get()
            under_way = 0
            for start in range(0, len(asked), WINDOW // 2):
                piece = asked[start : start + WINDOW // 2]
                try:
                    self._send(b"".join(piece))
                except OSError as error:
                    raise LineError("closed", self.last_error or str(error)) from None
                under_way += len(piece)
                last = start + len(piece) == len(asked)
                while under_way > (0 if last else WINDOW // 2):
                    answer, count = self._next_answer(self.timeout)
                    if answer.command == expected:
                        under_way -= count

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

    def _read(self) -> None:
        """Read what comes, in a thread of its own."""
        waiting = b""
        try:
            while True:
                try:
                    data = self._socket.recv(1024 * 1024)
                except ConnectionRefusedError:
                    if self._udp and not self.closed:
                        continue  # no one listens there now
                    raise
                if not data and not self._udp:
                    break
                self.answered_at = time.monotonic()
                waiting = self._take(data if self._udp else waiting + data)
        except OSError:
            pass
        self.closed = True
        self._wake.set()
        self._answers.put(None)
        self._messages.put(None)

    def _take(self, data: bytes) -> bytes:
        """Handle whole frames, and return what is left."""
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
                while data[at : at + len(whole)] == whole:  # as answers to many commands are
                    at += len(whole)
                    count += 1
            if line.command:
                self._handle(line, payload, count)

    def _handle(self, line: frames.Line, payload: bytes, count: int) -> None:
        match line.command:
            case "Ping":
                if self._udp and (self._subscriptions or self._connect_frame):
                    # Over UDP a broker sends Ping to an address that it does not know, and to no other.
                    self._seen.clear()  # it will count from the beginning
                    self._forgotten = True
                    self._wake.set()
                self._send(frames.line("Pong", *line.words))
            case "Pong" if line.words[:1] and line.words[0].startswith(ALIVE):
                self._ponged_at = time.monotonic()
                if self._away:
                    self._wake.set()
            case "Message":
                self._came(line, payload)
            case "List":
                self._lists.append(payload)
                self._answers.put((line, 1))
            case "Error":
                self.last_error = b" ".join(line.words[1:]).decode("utf-8", "replace")
                if self._udp and not self._asking.locked():  # over TCP, it is why the connection ends
                    self._notice(self.last_error)
                self._answers.put((line, count))
            case _:
                self._answers.put((line, count))

    def _came(self, line: frames.Line, payload: bytes) -> None:
        number = next((int(word[2:]) for word in line.words[2:] if word.startswith(b"n=")), None)
        topic = frames.unescape(line.words[0]).decode("utf-8", "replace")
        message = LineMessage(topic, payload, b"retain" in line.words[2:], number)
        if self._udp and number is not None:
            if number in self._seen:
                self._acknowledge(message)
                return
            self._seen.append(number)
        if self._pulled is not None and b"pull" in line.words[2:]:
            self._pulled.append(message)
        else:
            self._messages.put(message)

    def _keep_alive(self) -> None:
        """Send Ping at its intervals, and handle what the reading thread found out in between."""
        count, pinged_at = 0, 0.0
        next_ping = time.monotonic() + self._ping_interval
        while not self.closed:
            if self._wake.wait(max(0.0, next_ping - time.monotonic())):
                self._wake.clear()
                if not self.closed:
                    self._answers_again()
                continue
            if not self._away and self._ponged_at < pinged_at:
                self._away = True
                self._notice(f"no Pong came from {self._broker} within {self._ping_interval:g} s")
            if self._forgotten:
                self._wake.set()  # it could not be subscribed to again before
            count += 1
            pinged_at = time.monotonic()
            next_ping = pinged_at + self._ping_interval
            try:
                self._send(frames.line("Ping", ALIVE + b"%d" % count))
            except OSError:
                pass  # over UDP, the next may be received

    def _answers_again(self) -> None:
        """Subscribe again if the broker has forgotten the client; report that it is back."""
        if self._forgotten:
            self._forgotten = False
            try:
                if self._connect_frame is not None:
                    self._ask(self._connect_frame, "Ack", "Connect")
                for topic_filter, asked in list(self._subscriptions.items()):
                    if topic_filter in self._subscriptions:
                        self._ask(asked, "SubAck")
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


def _check_topic(topic: str) -> None:
    if not topic:  # a word of the protocol cannot be empty, so the broker could not tell what is wrong
        raise LineError("bad-topic", "a topic must not be empty")

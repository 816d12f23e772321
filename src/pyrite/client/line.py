"""A blocking client of the line protocol, over TCP or UDP; the classic programs are built on it.

with LineClient("127.0.0.1", 1373) as client:
    client.subscribe("news")
    client.publish("news", b"hello")
    print(next(client.messages()))
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from pyrite.client.line_link import Command, LineError, LineLink, LineMessage
from pyrite.protocols.line import frames

__all__ = ["DEFAULT_PING_INTERVAL", "DEFAULT_TIMEOUT", "LineClient", "LineError", "LineMessage"]

DEFAULT_TIMEOUT = 10.0
"""Seconds to wait for an answer."""
DEFAULT_PING_INTERVAL = 10.0
"""Seconds between two Pings."""


class LineClient:
    """A client with a TCP connection or, over UDP, a socket of its own.

    `notice` is called, from another thread, with errors that no command caused, and when Pong is missing or
    comes back.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 1373,
        udp: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
        *,
        ping_interval: float = DEFAULT_PING_INTERVAL,
        notice: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._connect: Command | None = None
        """The Connect that resumes the session, if the client has a name."""
        self._subscriptions: dict[str, Command] = {}
        """The Subscribe that renews a subscription, by filter."""
        self._last_id = 0
        self._link = LineLink(host, port, udp, timeout, ping_interval, self._restore, notice)

    def _restore(self) -> Iterator[Command]:
        if self._connect is not None:
            yield self._connect
        for topic_filter, command in list(self._subscriptions.items()):
            if topic_filter in self._subscriptions:  # not unsubscribed while the others were restored
                yield command

    @property
    def closed(self) -> bool:
        """True after the end of the connection."""
        return self._link.closed

    @property
    def last_error(self) -> str:
        """The last error that the broker reported."""
        return self._link.last_error

    def connect(
        self,
        client_id: str,
        resume: bool = False,
        ttl: int | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> bool:
        """Name the client; returns True if an existing session was resumed."""
        who = {"ttl": ttl, "user": user, "password": password}
        asked = frames.line("Connect", client_id, **{"resume" if resume else "clean": True}, **who)
        resumed = self._link.ask(asked, "Ack", "Connect").words[-1] == b"resumed"
        resume_frame = frames.line("Connect", client_id, resume=True, **who)
        self._connect = Command(resume_frame, ("Ack", "Connect"))
        return resumed

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> None:
        """Publish a message; returns once it is on the broker's disk."""
        _check_topic(topic)
        self._last_id += 1
        request = str(self._last_id)
        asked = frames.frame("Publish", topic, payload=payload, retain=retain, id=request)
        self._link.ask(asked, "PubAck", request=request)

    def publish_many(self, topic: str, payloads: Sequence[bytes]) -> None:
        """Publish messages without waiting for each; returns once all are on the broker's disk."""
        self._link.ask_many(
            [frames.frame("Publish", topic, payload=payload) for payload in payloads], "PubAck"
        )

    def create_many(self, topics: Sequence[str]) -> None:
        """Create topics without waiting for each; returns once all exist."""
        for topic in topics:
            _check_topic(topic)
        self._link.ask_many([frames.line("Create", topic) for topic in topics], "Ack")

    def delete_many(self, topics: Sequence[str]) -> None:
        """Delete topics without waiting for each; returns once all are deleted."""
        for topic in topics:
            _check_topic(topic)
        self._link.ask_many([frames.line("Delete", topic) for topic in topics], "Ack")

    def subscribe(
        self, topic_filter: str, ack: bool = False, latest: bool = False, start: str | None = None
    ) -> None:
        """Subscribe to a filter.

        With `ack`, messages are acknowledged; with `latest`, a newer message on a topic replaces one that
        waits. `start` is the position from which stored messages are replayed.
        """
        _check_topic(topic_filter)
        asked = frames.line("Subscribe", topic_filter, **{"ack": ack, "latest": latest, "from": start})
        self._link.ask(asked, "SubAck")
        renewal = frames.line("Subscribe", topic_filter, ack=ack, latest=latest)
        self._subscriptions[topic_filter] = Command(renewal, ("SubAck",))

    def unsubscribe(self, topic_filter: str) -> None:
        """Unsubscribe from a filter."""
        self._link.ask(frames.line("Unsubscribe", topic_filter), "Ack", "Unsubscribe")
        self._subscriptions.pop(topic_filter, None)

    def create(self, topic: str, new: bool = False) -> None:
        """Create a topic; with `new`, raises LineError with the code "exists" if it already exists."""
        _check_topic(topic)
        self._link.ask(frames.line("Create", topic, new=new), "Ack", "Create")

    def delete(self, topic: str) -> None:
        """Delete a topic and its retained message."""
        _check_topic(topic)
        self._link.ask(frames.line("Delete", topic), "Ack", "Delete")

    def topics(self, topic_filter: str = "#") -> list[tuple[str, bytes | None]]:
        """Return the topics that match a filter, each with its retained payload or None."""
        self._link.ask(frames.line("List", topic_filter), "List")
        found: list[tuple[str, bytes | None]] = []
        for row in self._link.lists.popleft().splitlines():
            name, space, kept = row.partition(b" ")
            found.append((frames.unescape(name).decode(), frames.unescape(kept) if space else None))
        return found

    def register(self, name: str, topic_filter: str, start: str | None = None) -> None:
        """Create a consumer, or open an existing one."""
        _check_topic(topic_filter)
        self._link.ask(frames.line("Register", name, topic_filter, **{"from": start}), "Ack", "Register")

    def unregister(self, name: str) -> None:
        """Delete a consumer."""
        self._link.ask(frames.line("Unregister", name), "Ack", "Unregister")

    def pull(self, name: str, count: int = 1) -> list[LineMessage]:
        """Fetch up to `count` messages from a consumer, and acknowledge them."""
        self._link.pulled = []
        try:
            self._link.ask(frames.line("Pull", name, count), "Ack", "Pull")
            pulled = self._link.pulled
        finally:
            self._link.pulled = None
        for message in pulled:
            self._link.acknowledge(message)
        return pulled

    def ping(self) -> None:
        """Send Ping and wait for Pong."""
        self._link.ask(frames.line("Ping", "client"), "Pong")

    def messages(self, timeout: float | None = None) -> Iterator[LineMessage]:
        """Yield messages until the connection ends, or none arrives for `timeout` seconds.

        A message is acknowledged when the next one is requested.
        """
        while True:
            try:
                message = self._link.messages.get(timeout=timeout)
            except queue.Empty:
                return
            if message is None:
                self._link.messages.put(None)  # for the next call
                return
            yield message
            self._link.acknowledge(message)

    def close(self) -> None:
        """Disconnect."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_topic(topic: str) -> None:
    if not topic:  # words of the protocol cannot be empty, so the broker's error would be unclear
        raise LineError("bad-topic", "a topic must not be empty")

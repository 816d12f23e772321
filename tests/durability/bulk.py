"""Fast clients for very many messages: MQTT 3.1.1, a whole window at a time."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from random import Random
from types import TracebackType
from typing import Self

from tests.conformance.reader import split
from tests.conformance.wire import (
    PUBLISH,
    PUBREL,
    connect_packet,
    options,
    string,
    subscribe_packet,
    varint,
)

WINDOW = 4_000
TIMEOUT = 30.0
NOISE = Random(0).randbytes(4_000_000)


def numbers(start: int, stop: int, size: int = 8) -> list[bytes]:
    """Return numbered payloads of a size that cannot be compressed."""
    places = [number * 7919 % (len(NOISE) - size) for number in range(start, stop)]
    return [b"%08d" % number + NOISE[at : at + size - 8] for number, at in enumerate(places, start)]


class Bulk:
    """A connection to the broker."""

    def __init__(self, port: int, client_id: str, clean: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(connect_packet(client_id, version=4, clean=clean))
        self.present = bool(self._exactly(4)[2])

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            chunk = self.socket.recv(count - len(data))
            assert chunk, "the broker closed the connection"
            data += chunk
        return bytes(data)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe; this must be the first request."""
        self.socket.sendall(subscribe_packet(1, [(topic_filter, options(qos))], version=4))
        assert self._exactly(5)[4] == qos

    def close(self) -> None:
        """Drop the connection."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def publish(port: int, topic: str, payloads: Iterable[bytes], qos: int = 1, window: int = WINDOW) -> None:
    """Publish messages a window at a time, and return when all are acknowledged."""
    head = string(topic)
    first = bytes([PUBLISH << 4 | qos << 1])
    with Bulk(port, "") as client:
        rest = iter(payloads)
        while now := list(islice(rest, window)):
            ids = [struct.pack(">H", number) for number in range(1, len(now) + 1)]
            middle = ids if qos else [b""] * len(now)
            client.socket.sendall(
                b"".join(
                    [
                        first + varint(len(head) + len(one) + len(payload)) + head + one + payload
                        for one, payload in zip(middle, now, strict=True)
                    ]
                )
            )
            if qos == 1:
                assert client._exactly(4 * len(ids)) == b"".join([b"\x40\x02" + one for one in ids])
            if qos == 2:
                assert client._exactly(4 * len(ids)) == b"".join([b"\x50\x02" + one for one in ids])
                client.socket.sendall(b"".join([b"\x62\x02" + one for one in ids]))
                assert client._exactly(4 * len(ids)) == b"".join([b"\x70\x02" + one for one in ids])
        client.socket.sendall(b"\xe0\x00")


def leave(port: int, client_ids: Sequence[str], topic_filter: str, qos: int, at_once: int = 100) -> None:
    """Create persistent sessions with one subscription each, and disconnect."""
    wish = subscribe_packet(1, [(topic_filter, options(qos))], version=4)
    for start in range(0, len(client_ids), at_once):
        with ExitStack() as stack:
            sockets = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT))
                for _ in client_ids[start : start + at_once]
            ]
            for one, client_id in zip(sockets, client_ids[start:], strict=False):
                one.sendall(connect_packet(client_id, version=4, clean=False) + wish)
            for one in sockets:
                answer = b""
                while len(answer) < 9:
                    answer += one.recv(9 - len(answer))
                assert answer == b"\x20\x02\x00\x00\x90\x03\x00\x01" + bytes([qos])


class Receiver(Bulk):
    """Receives the messages of one topic and completes their exchanges."""

    def __init__(self, port: int, client_id: str, clean: bool = False) -> None:
        super().__init__(port, client_id, clean)
        self._rest = b""

    def receive(self, count: int) -> list[bytes]:
        """Return this many payloads."""
        return list(islice(self._payloads(), count))

    def _payloads(self) -> Iterator[bytes]:
        while True:
            data = self.socket.recv(1 << 20)
            assert data, "the broker closed the connection"
            data = self._rest + data if self._rest else data
            answers: list[bytes] = []
            found: list[bytes] = []
            at = 0
            while (packet := split(data[at : at + 128]) or split(data[at:])) is not None:
                head, body, used = packet
                at += used
                if head >> 4 == PUBREL:
                    answers.append(b"\x70\x02" + body)
                    continue
                assert head >> 4 == PUBLISH, packet
                payload_at = 2 + (body[0] << 8 | body[1])
                if head & 6:
                    kind = b"\x40\x02" if head & 2 else b"\x50\x02"
                    answers.append(kind + body[payload_at : payload_at + 2])
                    payload_at += 2
                found.append(body[payload_at:])
            self._rest = data[at:]
            self.socket.sendall(b"".join(answers))
            yield from found


class Stream:
    """Publishes numbers in a thread until it is stopped; then `count` were acknowledged."""

    def __init__(self, port: int, topic: str, qos: int = 1, pause: float = 0.0, size: int = 8) -> None:
        self.count = 0
        self._rest = NOISE[: size - 8]
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(port, topic, qos, pause))

    def _run(self, port: int, topic: str, qos: int, pause: float) -> None:
        def numbers() -> Iterator[bytes]:
            while not self._stopped.is_set():
                yield b"%08d" % self.count + self._rest
                self.count += 1
                if pause and self.count % 20 == 0:
                    self._stopped.wait(pause)

        try:
            publish(port, topic, numbers(), qos)
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def stop(self) -> int:
        """Stop, and return the number of acknowledged messages."""
        self._stopped.set()
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self.count

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join(TIMEOUT)

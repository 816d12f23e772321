"""A blocking MQTT client that a test drives packet by packet, over TCP or WebSocket."""

from __future__ import annotations

import base64
import os
import socket
import time
from collections import deque
from typing import Any, Protocol

from .reader import Packet, read_packet, split
from .wire import (
    CONNACK,
    DISCONNECT,
    NAMES,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    ack_packet,
    connect_packet,
    disconnect_packet,
    options,
    packet,
    publish_packet,
    subscribe_packet,
    unsubscribe_packet,
)

TIMEOUT = 20.0  # what a broker on a busy machine may take for anything that is not itself about time


class Closed(Exception):
    """The server closed the network connection."""


class Transport(Protocol):
    """An ordered, lossless stream of bytes."""

    def send(self, data: bytes) -> None: ...

    def receive(self, timeout: float) -> bytes:
        """Return some bytes, or none at the end of the stream; raise TimeoutError when none came."""

    def close(self) -> None: ...


class Tcp:
    """Plain TCP."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server has closed already; what it sent before is still to be read

    def receive(self, timeout: float) -> bytes:
        self.socket.settimeout(timeout)
        try:
            return self.socket.recv(65536)
        except ConnectionResetError:
            return b""
        finally:
            self.socket.settimeout(TIMEOUT)

    def close(self) -> None:
        self.socket.close()


class WebSocket:
    """The part of RFC 6455 that MQTT needs: one frame per send, binary frames in."""

    def __init__(self, host: str, port: int, path: str, subprotocols: str | None = "mqtt") -> None:
        self.tcp = Tcp(host, port)
        self.buffer = b""
        self.close_code: int | None = None
        key = base64.b64encode(os.urandom(16)).decode()
        request = [
            f"GET {path} HTTP/1.1",
            f"Host: {host}:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        ]
        if subprotocols is not None:
            request.append(f"Sec-WebSocket-Protocol: {subprotocols}")
        self.tcp.send("\r\n".join([*request, "", ""]).encode())
        while b"\r\n\r\n" not in self.buffer:
            chunk = self.tcp.receive(TIMEOUT)
            if not chunk:
                break
            self.buffer += chunk
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(status.split()[1]) if status else 0
        self.headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }

    def send(self, data: bytes) -> None:
        self.send_frame(0x2, data)

    def send_frame(self, opcode: int, data: bytes, *, final: bool = True) -> None:
        mask = os.urandom(4)
        head = bytes([final << 7 | opcode])
        if len(data) < 126:
            head += bytes([0x80 | len(data)])
        elif len(data) < 65536:
            head += b"\xfe" + len(data).to_bytes(2, "big")
        else:
            head += b"\xff" + len(data).to_bytes(8, "big")
        self.tcp.send(head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data)))

    def receive(self, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        while True:
            frame = self._frame()
            if frame is not None:
                opcode, data = frame
                if opcode == 0x8:
                    self.close_code = int.from_bytes(data[:2], "big") if data else None
                    return b""
                if opcode in (0x9, 0xA):
                    continue
                # [MQTT-6.0.0-1] MQTT goes in binary frames (and their continuations), never in text frames.
                assert opcode in (0x0, 0x2), f"the server sent MQTT in a frame of opcode {opcode}"
                if data:
                    return data
                continue
            chunk = self.tcp.receive(max(deadline - time.monotonic(), 0.001))
            if not chunk:
                return b""
            self.buffer += chunk

    def _frame(self) -> tuple[int, bytes] | None:
        buffer = self.buffer
        if len(buffer) < 2:
            return None
        assert not buffer[1] & 0x80, "a server must not mask its frames"
        length, start = buffer[1] & 0x7F, 2
        if length >= 126:
            size = 2 if length == 126 else 8
            length, start = int.from_bytes(buffer[2 : 2 + size], "big"), 2 + size
        if len(buffer) < start + length:
            return None
        self.buffer = buffer[start + length :]
        return buffer[0] & 0x0F, buffer[start : start + length]

    def close(self) -> None:
        self.tcp.close()


class Client:
    """An MQTT client that does nothing on its own: the test sends, expects and acknowledges."""

    def __init__(self, transport: Transport, version: int = 5) -> None:
        self.transport = transport
        self.version = version
        self.client_id = ""
        self.connack: Packet | None = None
        self._buffer = b""
        self._inbox: deque[Packet] = deque()
        self._last_packet_id = 0

    # The raw level: bytes out, packets in.

    def send(self, data: bytes) -> None:
        self.transport.send(data)

    def next_packet_id(self) -> int:
        self._last_packet_id += 1
        return self._last_packet_id

    def read(self, timeout: float = TIMEOUT) -> Packet:
        """Return the next packet; raise Closed at the end of the stream, TimeoutError when none came."""
        return self._inbox.popleft() if self._inbox else self._read(timeout)

    def _read(self, timeout: float) -> Packet:
        deadline = time.monotonic() + timeout
        while (found := split(self._buffer)) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no packet within {timeout} s")
            data = self.transport.receive(left)
            if not data:
                raise Closed("the server closed the connection")
            self._buffer += data
        first, body, used = found
        self._buffer = self._buffer[used:]
        return read_packet(first, body, used, self.version)

    def expect(self, kind: int, timeout: float = TIMEOUT) -> Packet:
        """Return the next packet, which must be of this type."""
        found = self.read(timeout)
        assert found.kind == kind, f"expected {NAMES[kind]}, the server sent {found}"
        return found

    def wait_for(self, kind: int, timeout: float = TIMEOUT) -> Packet:
        """Return the next packet of this type; earlier packets stay to be read."""
        for at, waiting in enumerate(self._inbox):
            if waiting.kind == kind:
                del self._inbox[at]
                return waiting
        deadline = time.monotonic() + timeout
        while True:
            found = self._read(max(deadline - time.monotonic(), 0.001))
            if found.kind == kind:
                return found
            self._inbox.append(found)

    def expect_closed(self, timeout: float = TIMEOUT) -> None:
        """Require the end of the stream, and no packet before it."""
        try:
            found = self.read(timeout)
        except Closed:
            return
        raise AssertionError(f"expected the connection to be closed, the server sent {found}")

    def expect_disconnect(self, *reasons: int) -> Packet:
        """Require a DISCONNECT with one of these reason codes, and nothing after it."""
        while (found := self.read()).kind != DISCONNECT:
            pass
        wanted = ", ".join(f"{reason:#04x}" for reason in reasons)
        assert found.reason in reasons, f"expected DISCONNECT {wanted}, got {found.reason:#04x}"
        self.expect_closed()
        return found

    def expect_refused(self, *reasons: int) -> Packet:
        """Require a CONNACK with one of these reason codes, and then the end of the stream."""
        found = self.expect(CONNACK)
        wanted = ", ".join(f"{reason:#04x}" for reason in reasons)
        assert found.reason in reasons, f"expected CONNACK {wanted}, got {found.reason:#04x}"
        assert not found.session_present
        self.expect_closed()
        return found

    def close(self) -> None:
        """Drop the network connection, as if the network had failed."""
        self.transport.close()

    # The ordinary exchanges.

    def connect(self, client_id: str = "", **values: Any) -> Packet:
        """Send CONNECT and return the CONNACK, whatever its reason code."""
        self.client_id = client_id
        self.send(connect_packet(client_id, version=self.version, **values))
        self.connack = self.expect(CONNACK)
        return self.connack

    def disconnect(self, reason: int | None = None, **values: Any) -> None:
        """Send DISCONNECT and wait until the server has closed the connection."""
        self.send(disconnect_packet(reason, **values))
        while True:
            try:
                self.read()
            except Closed:
                break
        self.close()

    def ping(self) -> None:
        self.send(packet(PINGREQ, 0))
        self.wait_for(PINGRESP)

    def subscribe(
        self,
        *filters: str,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        **values: Any,
    ) -> Packet:
        """Subscribe to the filters with the same options, and return the SUBACK."""
        opts = options(
            qos, no_local=no_local, retain_as_published=retain_as_published, retain_handling=retain_handling
        )
        packet_id = self.next_packet_id()
        self.send(
            subscribe_packet(packet_id, [(name, opts) for name in filters], version=self.version, **values)
        )
        suback = self.wait_for(SUBACK)
        assert suback.packet_id == packet_id
        return suback

    def unsubscribe(self, *filters: str) -> Packet:
        packet_id = self.next_packet_id()
        self.send(unsubscribe_packet(packet_id, filters, version=self.version))
        unsuback = self.wait_for(UNSUBACK)
        assert unsuback.packet_id == packet_id
        return unsuback

    def publish(self, topic: str, payload: bytes = b"", *, qos: int = 0, **values: Any) -> Packet | None:
        """Publish and complete the exchange; return the PUBACK or PUBREC."""
        packet_id = self.next_packet_id() if qos else None
        self.send(
            publish_packet(topic, payload, qos=qos, packet_id=packet_id, version=self.version, **values)
        )
        if packet_id is None:
            return None
        answer = self.wait_for(PUBACK if qos == 1 else PUBREC)
        assert answer.packet_id == packet_id
        if qos == 2 and answer.reason < 0x80:
            self.send(ack_packet(PUBREL, packet_id))
            assert self.wait_for(PUBCOMP).packet_id == packet_id
        return answer

    def receive(self, timeout: float = TIMEOUT) -> Packet:
        """Return the next packet, which must be a PUBLISH, and complete its exchange."""
        message = self.expect(PUBLISH, timeout)
        self.acknowledge(message)
        return message

    def acknowledge(self, message: Packet) -> None:
        if message.qos == 1:
            self.send(ack_packet(PUBACK, message.packet_id))
        elif message.qos == 2:
            self.send(ack_packet(PUBREC, message.packet_id))
            assert self.wait_for(PUBREL).packet_id == message.packet_id
            self.send(ack_packet(PUBCOMP, message.packet_id))

    def received_before_fence(self, publisher: Client) -> list[Packet]:
        """Return every packet that comes before a last message, the fence, which the publisher sends now.

        So a test can show that something was *not* delivered without waiting: the fence follows it through
        the broker. It is published with QoS 1 and delivered with QoS 0, so no receive maximum delays it.
        """
        fence = f"fence/{os.urandom(8).hex()}"
        self.subscribe(fence)
        publisher.publish(fence, qos=1)
        received = []
        while (found := self.read()).topic != fence:
            received.append(found)
        return received

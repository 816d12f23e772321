"""MQTT over WebSocket (section 6): the websockets library, without its I/O, around an MQTT connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from websockets.exceptions import NegotiationError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from pyrite.protocols.mqtt.connection import Connection
from pyrite.server.streams import HIGH_WATER, peer_address

if TYPE_CHECKING:
    from pyrite.server.server import Server

SUBPROTOCOLS = ("mqtt", "mqttv3.1")
FRAME_SLACK = 1024 * 1024
_QUIET = logging.getLogger("pyrite.websocket")
_QUIET.setLevel(logging.ERROR)


def _select(protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Choose MQTT among the subprotocols that the client offers [MQTT-6.0.0-3], [MQTT-6.0.0-4]."""
    for name in SUBPROTOCOLS:
        if name in offered:
            return Subprotocol(name)
    raise NegotiationError("this is an MQTT broker: offer the subprotocol mqtt")


class WebSocketProtocol(asyncio.Protocol):
    """Joins one asyncio transport to one MQTT connection through WebSocket frames.

    For the MQTT connection it is the transport: what is written becomes one binary frame.
    """

    __slots__ = ("connection", "path", "server", "transport", "websocket")

    def __init__(self, server: Server, path: str) -> None:
        self.server = server
        self.path = path
        self.transport: asyncio.Transport | None = None
        self.connection: Connection | None = None
        self.websocket = ServerProtocol(
            select_subprotocol=_select,
            max_size=server.config.limits.max_packet_size + FRAME_SLACK,
            logger=_QUIET,
        )

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport, if there is room for one more connection."""
        self.transport = cast(asyncio.Transport, transport)
        address = self.server.admit(peer_address(transport))
        if address is None:
            self.transport.abort()
            self.transport = None
            return
        limits = self.server.config.limits
        self.transport.set_write_buffer_limits(high=min(HIGH_WATER, limits.max_waiting_bytes // 2))
        self.connection = Connection(self.server.broker, self.server.config.mqtt, self, address)
        self.server.connections.add(self.connection)

    def data_received(self, data: bytes) -> None:
        """Take frames apart and feed what is in them."""
        websocket = self.websocket
        websocket.receive_data(data)
        for event in websocket.events_received():
            if isinstance(event, Request):
                self._opened(event)
            elif isinstance(event, Frame) and self.connection is not None:
                if event.opcode is Opcode.BINARY or event.opcode is Opcode.CONT:
                    self.connection.feed(bytes(event.data))
                elif event.opcode is Opcode.TEXT:
                    # [MQTT-6.0.0-1]: MQTT travels in binary frames only.
                    websocket.fail(CloseCode.UNSUPPORTED_DATA, "MQTT travels in binary frames")
        self._send()

    def eof_received(self) -> None:
        """The client has said its last word."""
        self.websocket.receive_eof()
        self._send()

    def resume_writing(self) -> None:
        """The client has taken most of what waited for it."""
        if self.connection is not None:
            self.connection.drained()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        self.transport = None
        connection = self.connection
        if connection is not None:
            self.connection = None
            self.server.connections.discard(connection)
            self.server.dismiss(connection.credentials.address)
            connection.lost()

    def _opened(self, request: Request) -> None:
        websocket = self.websocket
        if request.path.partition("?")[0] != self.path:
            text = f"MQTT over WebSocket is at {self.path}\n"
            websocket.send_response(websocket.reject(HTTPStatus.NOT_FOUND, text))
        else:
            websocket.send_response(websocket.accept(request))

    def _send(self) -> None:
        """Send what the WebSocket protocol has to say, and close if it is done."""
        transport = self.transport
        if transport is None:
            return
        over = self.websocket.handshake_exc is not None
        for data in self.websocket.data_to_send():
            if data:
                transport.write(data)
            else:
                over = True
        if over or self.websocket.close_expected():
            if self.connection is not None:
                self.connection.hung_up()
            transport.close()
        limits = self.server.config.limits
        if transport.get_write_buffer_size() > 2 * limits.max_waiting_bytes + limits.max_packet_size:
            transport.abort()  # it does not read the answers to its pings

    # What the MQTT connection calls

    def write(self, data: bytes | bytearray) -> None:
        """Send bytes of MQTT as one frame."""
        if self.websocket.state is State.OPEN:
            self.websocket.send_binary(bytes(data))
            self._send()

    def pause_reading(self) -> None:
        """Read nothing from the client until further notice."""
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the client again."""
        if self.transport is not None:
            self.transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait for the client."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def close(self) -> None:
        """Say goodbye, and close."""
        if self.websocket.state is State.OPEN:
            self.websocket.send_close(CloseCode.NORMAL_CLOSURE)
            self._send()
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

"""MQTT over WebSocket (6), as a transport that packs and unpacks frames."""

from __future__ import annotations

from collections.abc import Callable

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidURI
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from pyrite.client.errors import ConnectError
from pyrite.client.transport import ClientTransport


class WebSocketTransport(ClientTransport):
    """Sends and receives binary messages of the WebSocket subprotocol `mqtt` (6)."""

    def __init__(
        self, uri: str, on_data: Callable[[bytes], None], on_lost: Callable[[ClientTransport, str], None]
    ) -> None:
        super().__init__(on_data, on_lost)
        # A packet may span WebSocket frames, so their size has no meaning [MQTT-6.0.0-2].
        try:
            self._socket = ClientProtocol(parse_uri(uri), subprotocols=[Subprotocol("mqtt")], max_size=None)
        except InvalidURI as error:
            raise ConnectError(str(error)) from None

    def _begin(self) -> None:
        self._socket.send_request(self._socket.connect())
        self._send()

    def _send(self) -> None:
        for data in self._socket.data_to_send():
            if data:
                super().write(data)

    def write(self, data: bytes) -> None:
        """Send one binary message."""
        self._socket.send_binary(data)
        self._send()

    def data_received(self, data: bytes) -> None:
        socket = self._socket
        socket.receive_data(data)
        events = socket.events_received()
        self._send()
        for event in events:
            if isinstance(event, Frame):
                if event.opcode in (Opcode.BINARY, Opcode.CONT):
                    self.on_data(bytes(event.data))
                elif event.opcode is Opcode.TEXT:
                    self.end(
                        "the broker sent a WebSocket text message, but MQTT needs binary ones"
                    )  # [MQTT-6.0.0-1]
            elif socket.handshake_exc is None and not self.opened.done():
                self.opened.set_result(None)
        error = socket.handshake_exc
        if error is not None:
            self.end(f"the WebSocket handshake failed: {error}")
        elif socket.close_expected():
            self.end(self.fault or "the broker closed the WebSocket")

"""MQTT over WebSocket (section 6): the websockets library, without its I/O, around an MQTT connection."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from websockets.exceptions import InvalidMessage, NegotiationError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from pyrite.broker.timers import TURN
from pyrite.process.endpoints import is_loopback, origin_of
from pyrite.protocols.receiver import LONG_READ
from pyrite.server.listeners import Listener
from pyrite.server.streams import StreamProtocol

if TYPE_CHECKING:
    from pyrite.server.server import Server

SUBPROTOCOLS = ("mqtt", "mqttv3.1")
FRAME_SLACK = 1024 * 1024
FRAMES_TOGETHER = 1024
"""Bytes of frames between two looks at the clock: the smallest frame has 6, and takes some 10 us."""
_QUIET = logging.getLogger("pyrite.websocket")
_QUIET.setLevel(logging.ERROR)


def _select(protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Choose MQTT among the subprotocols that the client offers [MQTT-6.0.0-3], [MQTT-6.0.0-4]."""
    for name in SUBPROTOCOLS:
        if name in offered:
            return Subprotocol(name)
    raise NegotiationError("this is an MQTT broker: offer the subprotocol mqtt")


def is_foreign(origin: str | None) -> bool:
    """Tell whether a browser was sent here by a page that is not from this machine; others say no origin."""
    if origin is None:
        return False
    try:
        host = urlsplit(origin).hostname or ""
    except ValueError:
        return True
    return not is_loopback(host) and not host.endswith(".localhost")


class WebSocketProtocol(StreamProtocol):
    """Joins one asyncio transport to one MQTT connection through WebSocket frames."""

    __slots__ = ("_rest", "_unread", "_waits", "local", "path", "websocket")

    def __init__(self, server: Server, listener: Listener) -> None:
        super().__init__(server, listener)
        self.path = listener.path
        self.local = listener.local
        self.websocket = ServerProtocol(
            select_subprotocol=_select,
            max_size=server.config.limits.before_login,
            logger=_QUIET,
        )
        self._rest = b""
        """What came and waits for the client's turn."""
        self._waits = False
        """Whether a turn was asked for: until then, frames are not taken apart."""
        self._unread = 0
        """Bytes of a handshake that is not complete."""

    def data_received(self, data: bytes) -> None:
        """Take frames apart, a piece of what came at a time, and feed what is in them.

        The pieces are small, as each of their bytes may be a frame; the rest waits for the client's turn.
        """
        if self._waits or self.server.round.is_over():
            self._rest += data
            self._pause_if_full()
            self._ask_for_a_turn()
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        """Take frames apart for a turn. The rest, or after a long turn the next read, waits for another."""
        rest = memoryview(data)
        clock = self.server.broker.clock
        began = clock()
        while rest and self.connection is not None:
            self._received(bytes(rest[:FRAMES_TOGETHER]))
            rest = rest[FRAMES_TOGETHER:]
            if rest and clock() > began + TURN:
                self._rest = bytes(rest)
                self._pause_if_full()
                break
        self._send()
        if self._rest or clock() > began + LONG_READ:
            self._ask_for_a_turn()
        if not self._rest:
            self.pace(len(data))

    def _ask_for_a_turn(self) -> None:
        if not self._waits and self.connection is not None:
            self._waits = True
            self.server.broker.interrupted(self)

    def go_on(self) -> None:
        """Take the rest of what came apart, for another turn."""
        self._waits = False
        rest, self._rest = self._rest, b""
        self._take(rest)
        if not self._rest and self.connection is not None and not self.connection.interrupted:
            self.resume_reading()

    def _pause_if_full(self) -> None:
        """Pause reading; of TLS only where the input would grow without bound."""
        if not self._tls or len(self._rest) > self._most_held:
            self._pause()

    def _input_waits(self) -> bool:
        """Return whether input of a client that has logged in waits for a turn."""
        connection = self.connection
        return super()._input_waits() or (
            connection is not None and connection.session is not None and bool(self._rest)
        )

    def resume_reading(self) -> None:
        """Read from the client again; close if its last frame, which ends the connection, has come."""
        super().resume_reading()
        self._send()

    def _received(self, data: bytes) -> None:
        websocket, limits = self.websocket, self.server.config.limits
        if websocket.state is State.CONNECTING:
            self._unread += len(data)
            if self._unread > limits.before_login:
                self._refuse("the handshake is too large")
                self.abort()
                return
        elif self.connection is not None and self.connection.session is not None:
            websocket.max_size = limits.max_packet_size + FRAME_SLACK
        websocket.receive_data(data)
        if isinstance(websocket.handshake_exc, InvalidMessage):
            self._refuse(str(websocket.handshake_exc))
        for event in websocket.events_received():
            if isinstance(event, Request):
                self._opened(event)
            elif isinstance(event, Frame) and self.connection is not None:
                if event.opcode is Opcode.BINARY or event.opcode is Opcode.CONT:
                    self.connection.feed(bytes(event.data))
                elif event.opcode is Opcode.TEXT:
                    # [MQTT-6.0.0-1]: MQTT travels in binary frames only.
                    websocket.fail(CloseCode.UNSUPPORTED_DATA, "MQTT travels in binary frames")

    def eof_received(self) -> bool:
        """Close: nothing more comes. Input that waits for a turn is handled before the connection ends."""
        if not self._input_waits():
            self.websocket.receive_eof()
            self._send()
        return False

    def _opened(self, request: Request) -> None:
        websocket = self.websocket
        origin = request.headers.get("Origin")
        if request.path.partition("?")[0] != self.path:
            text = f"MQTT over WebSocket is at {self.path}"
            response = websocket.reject(HTTPStatus.NOT_FOUND, text + "\n")
        elif self._takes_certificates and not self._is_own_page(origin, request.headers.get("Host", "")):
            # The browser shows the user's certificate for any page, and no one is asked.
            response = websocket.reject(HTTPStatus.FORBIDDEN, "this listener is for the broker's own pages\n")
            text = f"it is a page of {origin}, and this listener, with client certificates, is for own pages"
        elif self.local and self._is_foreign(origin):
            # Any page that someone on this machine looks at could be a client otherwise, without a log-in.
            response = websocket.reject(HTTPStatus.FORBIDDEN, "this listener is for pages of this machine\n")
            text = f"it is a page of {origin}, and this listener is for pages of this machine"
        else:
            response = websocket.accept(request)
            text = str(websocket.handshake_exc)
        websocket.send_response(response)
        if websocket.state is not State.OPEN:
            self._refuse(text)

    def _refuse(self, reason: str) -> None:
        """Note that no WebSocket comes of it."""
        if self.connection is not None and not self.connection.why:
            self.connection.tell_refused(0, f"WebSocket: {reason}")

    @property
    def _takes_certificates(self) -> bool:
        """Whether a browser may show its user's certificate here."""
        return self._listener.tls and bool(self.server.config.tls.client_ca)

    def _is_own_page(self, origin: str | None, host: str) -> bool:
        """Tell whether a page comes from this listener, from the dashboard, or from `http.public_url`.

        `host` is the name and port that the client asked for. Only browsers send an origin.
        """
        if origin is None:
            return True
        public_url = self.server.config.http.public_url
        own = {origin_of(public_url)} if public_url else set()
        ports = [one.port for one in self.server.listeners.open if one.scheme == "https"]
        try:
            name = urlsplit(f"https://{host}").hostname or ""
            name = f"[{name}]" if ":" in name else name
            own.add(origin_of(f"https://{host}"))
            own.update(origin_of(f"https://{name}:{port}") for port in ports)
        except ValueError:
            pass  # the Host is no name with a port
        return origin in own

    def _is_foreign(self, origin: str | None) -> bool:
        """Tell whether a browser was sent here by a page that is neither from this machine nor our own."""
        public_url = self.server.config.http.public_url
        return is_foreign(origin) and not (public_url and origin == origin_of(public_url))

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
        if (over or self.websocket.close_expected()) and not self._input_waits():
            if self.connection is not None:
                self.connection.hung_up()
            transport.close()
        limits = self.server.config.limits
        if transport.get_write_buffer_size() > 2 * limits.max_waiting_bytes + limits.max_packet_size:
            transport.abort()  # it does not read the answers to its pings

    def write(self, data: bytes | bytearray) -> None:
        """Send bytes of MQTT as one frame."""
        if self.websocket.state is State.OPEN:
            self.websocket.send_binary(bytes(data))
            self._send()

    def close(self) -> None:
        """Say goodbye, and close."""
        if self.websocket.state is State.OPEN:
            self.websocket.send_close(CloseCode.NORMAL_CLOSURE)
            self._send()
        super().close()

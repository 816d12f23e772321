"""MQTT over WebSocket (section 6): the websockets library, without its I/O, around an MQTT connection."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from time import monotonic
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
MAX_FRAMES_PER_CALL = 1024
"""Bytes of frames between two checks of the clock: the smallest frame has 6 bytes and takes 10 µs."""
_QUIET = logging.getLogger("pyrite.websocket")
_QUIET.setLevel(logging.ERROR)


def _select(protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Choose MQTT among the subprotocols that the client offers [MQTT-6.0.0-3], [MQTT-6.0.0-4]."""
    for name in SUBPROTOCOLS:
        if name in offered:
            return Subprotocol(name)
    raise NegotiationError("this is an MQTT broker: offer the subprotocol mqtt")


def is_foreign(origin: str | None) -> bool:
    """Return True for the Origin of a page on another machine. Only browsers send an Origin."""
    if origin is None:
        return False
    try:
        host = urlsplit(origin).hostname or ""
    except ValueError:
        return True
    return not is_loopback(host) and not host.endswith(".localhost")


class WebSocketProtocol(StreamProtocol):
    """Connects an asyncio transport and an MQTT connection through WebSocket frames."""

    __slots__ = ("_rest", "_unread", "_waits", "local", "path", "websocket")

    def __init__(self, server: Server, listener: Listener, peer: object) -> None:
        super().__init__(server, listener, peer)
        self.path = listener.path
        self.local = listener.local
        self.websocket = ServerProtocol(
            select_subprotocol=_select,
            max_size=server.config.limits.before_login,
            logger=_QUIET,
        )
        self._rest = b""
        """Received bytes that wait for the client's turn."""
        self._waits = False
        """True if a turn is scheduled; until then, frames are not parsed."""
        self._unread = 0
        """Bytes of an incomplete handshake."""

    def data_received(self, data: bytes) -> None:
        """Parse frames in small pieces, for one turn; the rest waits for the next turn."""
        if self._waits or self.server.round.is_over():
            self._rest += data
            self._pause_if_full()
            self._ask_for_a_turn()
        else:
            began = monotonic()
            self._take(data)
            self.server.worked_since(began)

    def _take(self, data: bytes) -> None:
        """Take frames apart for a turn. The rest, or after a long turn the next read, waits for another."""
        rest = memoryview(data)
        clock = self.server.broker.clock
        began = clock()
        while rest and self.connection is not None:
            self._received(bytes(rest[:MAX_FRAMES_PER_CALL]))
            rest = rest[MAX_FRAMES_PER_CALL:]
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
            self.server.broker.turns.add(self)

    def go_on(self) -> None:
        """Parse the rest for another turn."""
        self._waits = False
        rest, self._rest = self._rest, b""
        self._take(rest)
        if not self._rest and self.connection is not None and not self.connection.interrupted:
            self.resume_reading()

    def _pause_if_full(self) -> None:
        """Pause reading; with TLS, only if the input would grow without limit."""
        if not self._tls or len(self._rest) > self._most_held:
            self._pause()

    def _input_waits(self) -> bool:
        """Return True if input of a client waits for a turn, after log-in."""
        connection = self.connection
        return super()._input_waits() or (
            connection is not None and connection.session is not None and bool(self._rest)
        )

    def resume_reading(self) -> None:
        """Resume reading; close if the client's closing frame was received."""
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
        """Close at the end of input, unless input waits for a turn."""
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
            # Browsers present the user's certificate for any page, without asking.
            response = websocket.reject(
                HTTPStatus.FORBIDDEN, "this listener accepts the broker's own pages only\n"
            )
            text = f"a page of {origin}; with client certificates, only the broker's own pages are accepted"
        elif self.local and self._is_foreign(origin):
            # Otherwise, any page open on this machine could connect without a log-in.
            response = websocket.reject(
                HTTPStatus.FORBIDDEN, "this listener accepts pages of this machine only\n"
            )
            text = f"a page of {origin}; only pages of this machine are accepted"
        else:
            response = websocket.accept(request)
            text = str(websocket.handshake_exc)
        websocket.send_response(response)
        if websocket.state is not State.OPEN:
            self._refuse(text)

    def _refuse(self, reason: str) -> None:
        """Record the reason for refusing the handshake."""
        if self.connection is not None and not self.connection.why:
            self.connection.tell_refused(0, f"WebSocket: {reason}")

    @property
    def _takes_certificates(self) -> bool:
        """True if client certificates are accepted."""
        return self._listener.tls and bool(self.server.config.tls.client_ca)

    def _is_own_page(self, origin: str | None, host: str) -> bool:
        """Return True for a page of this host, the dashboard, or `http.public_url`.

        `host` is the Host header. Only browsers send an Origin.
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
            pass  # an invalid Host
        return origin in own

    def _is_foreign(self, origin: str | None) -> bool:
        """Return True for a page that is neither of this machine nor of `http.public_url`."""
        public_url = self.server.config.http.public_url
        return is_foreign(origin) and not (public_url and origin == origin_of(public_url))

    def _send(self) -> None:
        """Send pending frames, and close after the closing handshake."""
        transport = self.transport
        if transport is None:
            return
        over = self.websocket.handshake_exc is not None
        for data in self.websocket.data_to_send():
            if data:
                self._put(data)
            else:
                over = True
        if (over or self.websocket.close_expected()) and not self._input_waits():
            if self.connection is not None:
                self.connection.hung_up()
            self._close_transport()
        # What waits to be encrypted does not count: it reaches the transport within a few turns.
        limits = self.server.config.limits
        if transport.get_write_buffer_size() > 2 * limits.max_waiting_bytes + limits.max_packet_size:
            transport.abort()  # the client does not read the answers to its pings

    def write(self, data: bytes | bytearray) -> None:
        """Send MQTT bytes as one frame."""
        if self.websocket.state is State.OPEN:
            self.websocket.send_binary(bytes(data))
            self._send()

    def close(self) -> None:
        """Send a closing frame, and close."""
        if self.websocket.state is State.OPEN:
            self.websocket.send_close(CloseCode.NORMAL_CLOSURE)
            self._send()
        super().close()

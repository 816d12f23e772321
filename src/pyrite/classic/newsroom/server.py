"""The server of the newsroom: `Server().start()`.

Clients send lines: CONN NAME, RECON NAME, PUB SUBJECT CONTENT, SUB SUBJECT, DISC, and ACK NUMBER for what
they are sent, which is MSG NUMBER SUBJECT CONTENT. They are answered CONN_ACK, CON_ACK, PUB_ACK, SUB_ACK,
DISC_ACK, or ERROR with a text.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # started or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

import asyncio
import tempfile
import threading
import time
from functools import partial
from typing import Self

from pyrite.broker import session as sessions
from pyrite.broker.catalog import LISTED, TopicOptions
from pyrite.broker.core import Broker
from pyrite.broker.journal import Fault
from pyrite.broker.link import Transport
from pyrite.broker.message import Batch, Properties
from pyrite.broker.subscriptions import Subscription
from pyrite.classic.translating import TranslatingConnection
from pyrite.protocols.conversation import Conversation
from pyrite.protocols.line import frames
from pyrite.protocols.line.frames import Line
from pyrite.server.config import Config
from pyrite.server.listeners import Listener
from pyrite.server.server import Server as PyriteServer

SUBJECTS = ["NEWS", "WEATHER"]
MAX_AGE = 30.0
"""Seconds after which a message that a subscriber missed is no longer sent."""
DAY = 86_400
PUBLISHED = "published"


class NewsroomConnection(TranslatingConnection):
    """One publisher or subscriber."""

    __slots__ = ("_max_age", "_welcome")

    def __init__(self, broker: Broker, transport: Transport, address: str, peer: str, max_age: float) -> None:
        super().__init__(broker, transport, address, peer)
        self._max_age = max_age
        self._welcome = b""

    def request(self, line: bytes) -> None:
        """Do what a line asks for."""
        action, _, rest = line.partition(b" ")
        match action:
            case b"CONN" | b"RECON" if rest.strip():
                self._welcome = b"CONN_ACK" if action == b"CONN" else b"CON_ACK"
                clean = action == b"CONN"
                self.ask(frames.line("Connect", rest.strip(), clean=clean, resume=not clean, ttl=DAY))
            case b"PUB" if rest.strip():
                subject, _, content = rest.partition(b" ")
                self._put(subject, content)
            case b"SUB" if rest.strip():
                self.ask(b"Subscribe " + frames.escape(rest.strip()) + b" ack from=earliest\n")
            case b"ACK" if rest.isdigit():
                self.ask(frames.line("Ack", rest))
            case b"DISC":
                self.part(b"DISC_ACK")
            case _:
                self.tell(b"ERROR unknown action: expected CONN, RECON, PUB, SUB, DISC or ACK")

    def _put(self, subject: bytes, content: bytes) -> None:
        broker = self.broker
        refusal = broker.catalog.refusal(subject)
        if refusal:
            self.tell(b"ERROR " + refusal.encode())
            return
        when = Properties(user_properties=((PUBLISHED, str(time.time())),))
        batch = Batch(subject, content, 1, properties=when, origin=self.credentials.client_id)
        broker.publish(batch, done=partial(self._kept, self.session))

    def _kept(self, session: sessions.Session | None, _: bool, fault: Fault | None) -> None:
        if self.session is session:
            self.tell(b"PUB_ACK" if fault is None else b"ERROR " + fault.text.encode())

    def send(
        self, batch: Batch, start: int, stop: int, target: Subscription, qos: int, first_id: int, dup: bool
    ) -> bool:
        """Send messages, but not those that a subscriber missed too long ago."""
        session = self.session
        if session is not None and qos and target.replay is None and self._is_old(batch):
            self.broker.soon(partial(session.acknowledge, range(first_id, first_id + stop - start)))
            return True
        return super().send(batch, start, stop, target, qos, first_id, dup)

    def _is_old(self, batch: Batch) -> bool:
        carried = dict(batch.properties.user_properties) if batch.properties is not None else {}
        return PUBLISHED in carried and time.time() - float(carried[PUBLISHED]) > self._max_age

    def answer(self, line: Line, payload: bytes) -> None:
        """Tell the client what the line protocol says."""
        match line.command:
            case "SubAck":
                self.tell(b"SUB_ACK")
            case "Ack" if line.words[0] == b"Connect":
                self.tell(self._welcome)
            case "Message":
                number = next((word[2:] for word in line.words if word.startswith(b"n=")), b"0")
                self.tell(b" ".join([b"MSG", number, line.words[0], payload.replace(b"\n", b" ")]))
            case "Error":
                self.tell(b"ERROR " + b" ".join(line.words[1:]))


class _Newsroom(PyriteServer):
    def __init__(self, config: Config, max_age: float) -> None:
        super().__init__(config)
        self._max_age = max_age

    def connection(self, listener: Listener, transport: Transport, address: str, peer: str) -> Conversation:
        return NewsroomConnection(self.broker, transport, address, peer, self._max_age)


class Server:
    """The newsroom's server, in a thread of its own."""

    def __init__(self, host: str = "127.0.0.1", port: int = 12345, max_age: float = MAX_AGE) -> None:
        self.host = host
        self.port = port
        self._max_age = max_age
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="newsroom", daemon=True)

    def start(self) -> None:
        """Start, and return when clients may come."""
        self._thread.start()
        self._ready.wait(30)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="newsroom-") as data:
                asyncio.run(self._serve(data))
        except Exception as error:
            self._error = error
            self._ready.set()

    async def _serve(self, data: str) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        url = f"line://{self.host}:{self.port}"
        server = _Newsroom(
            Config(listen=[url], data=data, topics=TopicOptions(LISTED, SUBJECTS)), self._max_age
        )
        self.port = (await server.start())[0].port
        self._ready.set()
        await self._stop.wait()
        await server.stop()

    def stop(self) -> None:
        """Stop, and forget everything."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

"""The server of the newsroom: `Server().start()`.

server.py [--host HOST] [--port PORT]
"""

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # run or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

import argparse
import asyncio
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from pyrite.broker.catalog import LISTED, TopicOptions
from pyrite.broker.link import Transport
from pyrite.broker.session import Session
from pyrite.classic import common
from pyrite.classic.newsroom.connection import SUBJECTS, NewsroomConnection
from pyrite.protocols.conversation import Conversation
from pyrite.server.config import Config
from pyrite.server.listeners import Listener
from pyrite.server.server import Server as PyriteServer

T = TypeVar("T")

MAX_AGE = 30.0
"""Age in seconds from which a missed message is no longer delivered."""
TIMEOUT = 30.0
"""Timeout for inspecting and stopping a running server, in seconds."""


class Newsroom(PyriteServer):
    """A broker for publishers and subscribers of the newsroom."""

    def __init__(self, config: Config, max_age: float) -> None:
        super().__init__(config)
        self._max_age = max_age
        self._stream = self.broker.journal.streams[0]

    def connection_refused(self, address: str) -> None:
        """Print that a connection is one too many."""
        print(f"error: a connection from {address} is refused: too many connections", flush=True)

    def connection(self, listener: Listener, transport: Transport, address: str, peer: str) -> Conversation:
        """Create the connection of a client."""
        return NewsroomConnection(self.broker, self.clean, transport, address, peer)

    def clean(self, then: Callable[[], object]) -> None:
        """Expire the old messages of clients that are away, then make a call."""
        journal, stream = self.broker.journal, self._stream

        def found(offset: int) -> None:
            for session in self._away():
                if session.positions is not None and session.positions.get(stream, offset) < offset:
                    session.fall_behind(stream, offset)
            then()

        journal.offset_at(stream, journal.wall() - self._max_age, found)

    def _away(self) -> list[Session]:
        sessions = self.broker.sessions.by_id.values()
        return [session for session in sessions if session.link is None and session.subscriptions]

    def _published(self, offset: int) -> Iterator[dict[str, Any]]:
        """Yield rows from the log."""
        assert self.journal is not None
        for rows in self.journal.read_all(self._stream, offset):
            yield from rows.to_pylist()

    def subscribers(self) -> dict[str, list[str]]:
        """Return the names of each subject's subscribers, connected or not."""
        sessions = self.broker.sessions.by_id.items()
        return {
            one: [name for name, session in sessions if one.encode() in session.subscriptions]
            for one in SUBJECTS
        }

    def messages(self) -> dict[str, list[str]]:
        """Return what was published on each subject."""
        found: dict[str, list[str]] = {subject: [] for subject in SUBJECTS}
        for row in self._published(0):
            found[row["topic"]].append(row["payload"].decode("utf-8", "replace"))
        return found

    def offline_subscribers(self) -> dict[str, list[str]]:
        """Return the names of subscribers that are away, with their subjects."""
        return {one.client_id: [key.decode() for key in one.subscriptions] for one in self._away()}

    def offline_queue(self) -> list[tuple[str, str, str, float]]:
        """Return the messages that wait for subscribers that are away: client, subject, content, and time
        of publication.
        """
        queue: list[tuple[str, str, str, float]] = []
        for session in self._away():
            offset = (session.positions or {}).get(self._stream, self._stream.routed)
            for row in self._published(offset):
                if row["topic"].encode() in session.subscriptions:
                    content = row["payload"].decode("utf-8", "replace")
                    queue.append((session.client_id, row["topic"], content, row["timestamp"].timestamp()))
        return queue


class Server:
    """The newsroom's server: it listens from its creation, and serves while `start` runs."""

    def __init__(self, host: str = "127.0.0.1", port: int = 12345, max_age: float = MAX_AGE) -> None:
        self.host = host
        self.port = port
        self._max_age = max_age
        self._serving: int | None = None
        self._stopped = threading.Event()
        self._data = tempfile.TemporaryDirectory(prefix="newsroom-")
        self._loop = asyncio.new_event_loop()
        try:
            self._newsroom = self._loop.run_until_complete(self._listen())
        except BaseException:
            self._close()
            raise
        reach = "this machine only" if self._newsroom.listeners.open[0].local else "for other machines too"
        print(f"Server is ready on {self.host}:{self.port} ({reach})", flush=True)

    async def _listen(self) -> Newsroom:
        url = f"line://{self.host}:{self.port}"
        topics = TopicOptions(LISTED, SUBJECTS)
        newsroom = Newsroom(Config(listen=[url], data=self._data.name, topics=topics), self._max_age)
        self.port = (await newsroom.start())[0].port
        return newsroom

    def start(self) -> None:
        """Serve until `stop` is called."""
        if self._stopped.is_set():
            return
        self._serving = threading.get_ident()
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._newsroom.stop())
            self._close()

    def stop(self) -> None:
        """Stop the server, from any thread, and discard its data."""
        if self._serving is None:
            self._serving = threading.get_ident()
            self._loop.run_until_complete(self._newsroom.stop())
            self._close()
        elif not self._stopped.is_set():
            self._loop.call_soon_threadsafe(self._loop.stop)
            if self._serving != threading.get_ident():
                self._stopped.wait(TIMEOUT)

    def _close(self) -> None:
        self._loop.close()
        self._data.cleanup()
        self._stopped.set()

    @property
    def subscribers(self) -> dict[str, list[str]]:
        """The names of each subject's subscribers, connected or not."""
        return self._look(self._newsroom.subscribers)

    @property
    def messages(self) -> dict[str, list[str]]:
        """What was published on each subject."""
        return self._look(self._newsroom.messages)

    @property
    def offline_subscribers(self) -> dict[str, list[str]]:
        """The subjects of each subscriber that is away."""
        return self._look(self._newsroom.offline_subscribers)

    @property
    def offline_queue(self) -> list[tuple[str, str, str, float]]:
        """The messages that wait for subscribers that are away, as (client, topic, message, timestamp)."""
        return self._look(self._newsroom.offline_queue)

    def clean_queue(self) -> None:
        """Remove messages older than 30 s from the offline queue."""

        async def clean() -> None:
            cleaned = asyncio.Event()
            self._newsroom.clean(cleaned.set)
            await cleaned.wait()

        if self._loop.is_running():
            asyncio.run_coroutine_threadsafe(clean(), self._loop).result(TIMEOUT)
        else:
            self._loop.run_until_complete(clean())

    def _look(self, view: Callable[[], T]) -> T:
        async def look() -> T:
            return view()

        if self._loop.is_running():
            return asyncio.run_coroutine_threadsafe(look(), self._loop).result(TIMEOUT)
        return view()


@common.program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog=common.name(), description="the server of the newsroom")
    parser.add_argument(
        "--host", default="127.0.0.1", help="0.0.0.0 for all addresses (default: this machine only)"
    )
    parser.add_argument("--port", type=common.port, default=12345, help="0: any free one (default: 12345)")
    asked = parser.parse_args(arguments)
    servers: list[Server] = []
    signals = threading.Event()

    def stop(*_: object) -> None:
        signals.set()
        for server in servers:
            server.stop()

    # Set before the server is created, which prints that it is ready: from then on Ctrl-C must stop it
    # cleanly.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    server = Server(asked.host, asked.port)
    servers.append(server)
    if signals.is_set():
        server.stop()
    server.start()
    return common.stopped()


if __name__ == "__main__":
    sys.exit(main())

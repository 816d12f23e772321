"""A reverse proxy in front of a broker, like nginx: TLS, a path prefix, HTTP and WebSocket."""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from types import TracebackType

CONNECTION = re.compile(rb"(?i)connection:[^\r]*\r\n")


class Proxy:
    """Serves in a thread, on a free port of 127.0.0.1, until the end of a `with` block.

    Requests below `prefix` are forwarded to the port `http`, or to `websocket` for an upgrade; both ports
    are set once they are known. The Host header is forwarded unchanged.
    """

    def __init__(self, context: ssl.SSLContext, prefix: str) -> None:
        self.port = self.http = self.websocket = 0
        self._context = context
        self._prefix = prefix.encode()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._started, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._over.wait()
        server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, rest = head.split(b" ", 2)
            wants_websocket = b"upgrade: websocket" in rest.lower()
            if not wants_websocket:
                rest = CONNECTION.sub(b"", rest).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
            port = self.websocket if wants_websocket else self.http
            theirs, ours = await asyncio.open_connection("127.0.0.1", port)
            ours.write(b" ".join((method, path.removeprefix(self._prefix), rest)))
            await asyncio.gather(self._pipe(reader, ours), self._pipe(theirs, writer))
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()
            self._writers.discard(writer)

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(5)

"""One connection to NATS that is always renewed, and requests over it.

nats-py can reconnect by itself, but then sends what it had buffered before the loss, at a time that nobody
can tell, and gives up for good after some errors. So each connection gets a client of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client

from pyrite.errors import PyriteError

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT = 3.0
"""Seconds for one attempt to connect to all servers."""
CLOSED_INTERVAL = 0.5
"""Seconds between two looks whether a connection has ended."""
RETRY_DELAY = 0.2
"""Seconds between two attempts to connect."""
PING_INTERVAL = 2
"""Seconds between two pings; a server that leaves two of them unanswered is considered dead."""
Work = Callable[[Callable[[], object]], object]
"""Calls a function in the event loop, and does what the broker has to do after each call."""
REQUEST_TIMEOUT = 2.0
"""Seconds for an answer of JetStream's API."""
NO_ANSWER = 503
"""The code of an error for a request that nobody answered."""


class EngineError(PyriteError):
    """The engine refused a request, or did not answer."""

    def __init__(self, code: int, description: str, detail: int = 0) -> None:
        super().__init__(description)
        self.code = code
        """The kind of error, as in HTTP."""
        self.detail = detail
        """JetStream's number of the error."""


class Connection:
    """A connection to one of several servers, renewed whenever it is lost.

    `connected` is called with each new client, and completes when the client has its subscriptions; `lost` is
    called when a client is no longer usable.
    """

    def __init__(
        self,
        servers: Sequence[str],
        settings: Mapping[str, Any],
        connected: Callable[[Client], Awaitable[object]],
        lost: Callable[[], object],
    ) -> None:
        self._servers = list(servers)
        self._settings = settings
        self._connected = connected
        self._lost = lost
        self._task: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()
        self.client: Client | None = None
        """The client while it is connected and has its subscriptions."""
        self.max_payload = 1024 * 1024
        """Bytes of the largest message; nats-server's default before the first connection."""
        self.trouble = ""
        """Why the last attempt to connect failed."""

    def open(self) -> None:
        """Connect, and stay connected."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Disconnect for good."""
        if self._task is not None:
            await end(self._task)

    async def request(self, subject: str, body: Any = None) -> dict[str, Any]:
        """Send a request to JetStream's API and return the answer; raise EngineError for an error or none."""
        client = self.client
        if client is None:
            raise EngineError(NO_ANSWER, "not connected to the engine")
        try:
            data = b"" if body is None else json.dumps(body).encode()
            answer = await client.request(subject, data, timeout=REQUEST_TIMEOUT)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            raise EngineError(NO_ANSWER, f"no answer from the engine: {why}") from None
        return parsed(answer.data)

    async def _run(self) -> None:
        while True:
            client = Client()
            self._closed.clear()
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await self._connect(client)
                await self._connected(client)
                self.client, self.max_payload = client, client.max_payload
                if self.trouble:
                    logger.warning("connected to the engine again")
                self.trouble = ""
                await self._until_closed(client)
            except (nats.errors.Error, TimeoutError, OSError) as error:
                trouble = str(error) or type(error).__name__
                if trouble != self.trouble:
                    logger.warning("cannot connect to the engine: %s", trouble)
                self.trouble = trouble
            finally:
                was_connected, self.client = self.client is not None, None
                if was_connected:
                    self.trouble = self.trouble or "the connection was lost"
                    self._lost()
                await _abandon(client)
            await asyncio.sleep(RETRY_DELAY)

    async def _until_closed(self, client: Client) -> None:
        """Wait for the end of a connection, which nats-py may reach without calling `closed_cb`."""
        while not self._closed.is_set() and not client.is_closed:
            try:
                async with asyncio.timeout(CLOSED_INTERVAL):
                    await self._closed.wait()
            except TimeoutError:
                pass

    async def _connect(self, client: Client) -> None:
        await client.connect(
            servers=self._servers,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=2,
            ping_interval=PING_INTERVAL,
            error_cb=self._note,
            closed_cb=self._end,
            **self._settings,
        )

    async def _note(self, error: Exception) -> None:
        logger.debug("engine: %s", error or type(error).__name__)

    async def _end(self) -> None:
        self._closed.set()


async def _abandon(client: Client) -> None:
    """Close a client, whatever state it is in."""
    try:
        async with asyncio.timeout(1):
            await client.close()
    except Exception as error:  # nats-py raises anything if the connection broke at the wrong time
        logger.debug("engine: %s", error)


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task until it has ended: asyncio.wait_for, which nats-py uses, may swallow a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=0.5)


def parsed(data: bytes) -> dict[str, Any]:
    """Return an answer of JetStream's API; raise EngineError if it is an error."""
    try:
        answer = json.loads(data)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise EngineError(NO_ANSWER, "unexpected answer from the engine")
    error = answer.get("error")
    if error:
        raise EngineError(error.get("code", 500), error.get("description", "error"), error.get("err_code", 0))
    return answer

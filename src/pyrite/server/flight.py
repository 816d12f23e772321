"""The broker's side of its Flight process: starts it, answers what it asks, starts it again if it dies."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from collections.abc import Callable
from typing import Any

from pyrite.broker.access import Accept, Access, Credentials, Refuse
from pyrite.broker.core import Broker
from pyrite.log.sinks import Sinks
from pyrite.server.config import Config
from pyrite.server.listeners import Listener

logger = logging.getLogger(__name__)

START = 60.0
"""Seconds in which the process must be there."""
AGAIN = 1.0
"""Seconds after which a process that died is started again."""
ENOUGH = 3.0
"""Seconds that it has to end."""

Message = dict[str, Any]


class FlightProcess:
    """One Flight listener."""

    def __init__(
        self,
        config: Config,
        listener: Listener,
        broker: Broker,
        sinks: Sinks,
        at_work: Callable[[Callable[[], object]], None],
    ) -> None:
        self._config = config
        self.listener = listener
        self._broker = broker
        self._sinks = sinks
        self._at_work = at_work
        """Does something with the broker, and sends what comes of it."""
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> Listener:
        """Start the process, and return where it listens; OSError if it cannot."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[int] = loop.create_future()
        self._task = loop.create_task(self._run(ready))
        try:
            port = await asyncio.wait_for(asyncio.shield(ready), START)
        except TimeoutError:
            raise OSError(0, "the Flight process does not start") from None
        self.listener = self.listener.at_port(port)
        return self.listener

    def restart(self) -> None:
        """Have another process in place of this one: with certificates that are new."""
        if self.listener.tls and self._process is not None:
            self._process.terminate()

    async def stop(self) -> None:
        """End the process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, ready: asyncio.Future[int]) -> None:
        """Keep a process running."""
        while True:
            try:
                await self._run_once(ready)
            except OSError as error:
                logger.error("the Flight process cannot be started: %s", error)
            if not ready.done():
                ready.set_exception(OSError(0, "the Flight process ended at once"))
            if ready.exception() is not None:
                return
            logger.error("the Flight process has ended; it is started again")
            await asyncio.sleep(AGAIN)

    async def _run_once(self, ready: asyncio.Future[int]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "pyrite.flight",
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
            )
        self._process = process
        reader, writer = await asyncio.open_connection(sock=ours, limit=64 * 1024 * 1024)
        try:
            writer.write(json.dumps(self._settings()).encode() + b"\n")
            while line := await reader.readline():
                self._handle(json.loads(line), writer, ready)
            await process.wait()
        finally:
            writer.close()
            await _end(process)

    def _settings(self) -> Message:
        """Return what the process is to know."""
        tls = self._config.tls
        return {
            "data": str(self._config.data),
            "host": self.listener.host,
            "port": self.listener.port,
            "open": type(self._broker.access) is Access,
            "tls": None
            if not self.listener.tls
            else {
                "certificate": tls.certificate,
                "key": tls.key or tls.certificate,
                "client_ca": tls.client_ca,
                "require_client_certificate": tls.require_client_certificate,
            },
        }

    def _handle(self, message: Message, writer: asyncio.StreamWriter, ready: asyncio.Future[int]) -> None:
        """Answer a question of the process."""
        if "number" not in message:
            if not ready.done():
                if "port" in message:
                    ready.set_result(message["port"])
                else:
                    ready.set_exception(OSError(0, message["failed"]))
            return

        def answer(**found: Any) -> None:
            if not writer.is_closing():
                writer.write(json.dumps({"number": message["number"], **found}).encode() + b"\n")

        asked = {"authenticate": self._authenticate, "read": self._may_read, "commit": self._commit}

        def work() -> None:
            try:
                asked[message["ask"]](message, answer)
            except Exception:  # a plug-in may do anything
                logger.exception("internal error")
                answer(refused="internal error", committed=False, wrong="internal error")

        self._at_work(work)

    def _authenticate(self, message: Message, answer: Callable[..., None]) -> None:
        password = message["password"]
        given = Credentials("", message["username"], password and password.encode(), message["address"])

        def decided(verdict: Accept | Refuse) -> None:
            if isinstance(verdict, Refuse):
                answer(refused=verdict.reason or "not authorized")
            else:
                answer(username=verdict.username)

        self._broker.authenticate(given, decided)

    def _may_read(self, message: Message, answer: Callable[..., None]) -> None:
        access = self._broker.access
        who = Credentials("", message["username"], None, "flight")
        for topic in message["topics"]:
            if access.checks_topics and not access.may_pull(who, topic):
                answer(refused=f"not authorized for {topic!r}")
                return
        answer()

    def _commit(self, message: Message, answer: Callable[..., None]) -> None:
        access = self._broker.access
        who = Credentials("", message["username"], None, "flight")

        def may_publish(topic: str) -> bool:
            return not access.checks_topics or access.may_publish(who, topic)

        def done(committed: bool, wrong: str) -> None:
            answer(committed=committed, wrong=wrong)

        self._sinks.commit(message["sink"], message["batch"], message["parts"], may_publish, done)


async def _end(process: asyncio.subprocess.Process) -> None:
    """See to it that a process has ended; it does so by itself when its socket is closed."""
    try:
        await asyncio.wait_for(process.wait(), ENOUGH)
    except TimeoutError:
        process.kill()
        await process.wait()

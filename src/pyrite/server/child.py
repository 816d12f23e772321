"""Processes beside the broker: each serves one listener, so that its work takes nothing from the event loop.

A child is `python -m MODULE DESCRIPTOR`, with the descriptor of a socket to the broker. The socket carries
frames (pyrite/channel.py): first the child's settings; then `{"port": ...}` or `{"failed": ...}` from the
child; then its questions, each with a number, and their answers, which may overtake one another. A long
answer comes as several `{"part": ...}` before the last, so that no turn of the event loop encodes all of it.
Without a number the child reports a connection that TLS refused, `{"refused": ...}`, an answer that is no
longer wanted, `{"left": NUMBER}`, and a read that has ended, `{"ended": READ}`; the broker reports new
certificates, `{"tls": ...}`, and to Flight changed rights, `{"changed": true}`. A child ends when its socket
does, and is started again when it dies.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pyrite.broker.access import Credentials
from pyrite.broker.core import TURN, Broker
from pyrite.ipc.channel import Message, frame, receive
from pyrite.protocols.events import tell_refused
from pyrite.server.config import Config, Tls
from pyrite.server.listeners import Listener

START = 60.0
"""Seconds in which a process must be there."""
AGAIN = 1.0
"""Seconds after which a process that died is started again."""
ENOUGH = 3.0
"""Seconds that it has to end."""
READ_AHEAD = 1024 * 1024
"""Bytes of questions that are buffered before the child has to wait."""

Answer = Callable[..., None]
Question = Callable[[Message, Answer], None]


class Child:
    """One listener that a process of its own serves."""

    name = ""
    """What the process is called, in messages for people."""
    module = ""
    """Which module it runs."""
    sorry: Mapping[str, Any] = {}
    """What is answered when something went wrong that should not have."""

    def __init__(
        self, listener: Listener, broker: Broker, at_work: Callable[[Callable[[], object]], None]
    ) -> None:
        self.listener = listener
        self._broker = broker
        self._at_work = at_work
        """Does something with the broker, and sends what comes of it."""
        self._logger = logging.getLogger(type(self).__module__)
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        """Leads to the process, once that knows what it is to know."""

    def settings(self) -> Message:
        """Return what the process is to know."""
        raise NotImplementedError

    def questions(self) -> Mapping[str, Question]:
        """Return what the process may ask."""
        raise NotImplementedError

    def left(self, number: int) -> None:
        """Hear that no one waits any longer for the answer to a question."""

    def ended(self, read: int) -> None:
        """Hear that a read of the log is over."""

    def gone(self) -> None:
        """Hear that the process has ended: nothing that it asked for is wanted any longer."""

    async def start(self) -> Listener:
        """Start the process, and return where it listens; OSError if it cannot."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[int] = loop.create_future()
        self._task = loop.create_task(self._run(ready))
        try:
            port = await asyncio.wait_for(asyncio.shield(ready), START)
        except TimeoutError:
            raise OSError(0, f"the {self.name} process does not start") from None
        self.listener = self.listener.at_port(port)
        return self.listener

    def renew(self, certificates_changed: bool, trust_changed: bool) -> None:
        """Have what was read again in force: other certificates, also of clients if `trust_changed`."""
        if certificates_changed and self.listener.tls:
            self.say(tls=self.settings()["tls"], trust_changed=trust_changed)

    def say(self, **message: Any) -> None:
        """Tell the process something, if it is there."""
        if self._writer is not None:
            _send(self._writer, message)

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
                self._logger.error("the %s process cannot be started: %s", self.name, error)
            except (ValueError, KeyError, asyncio.IncompleteReadError):
                self._logger.exception("unexpected message from the %s process", self.name)
            if not ready.done():
                ready.set_exception(OSError(0, f"the {self.name} process ended at once"))
            if ready.exception() is not None:
                return
            self._logger.error("the %s process has ended; it is started again", self.name)
            await asyncio.sleep(AGAIN)

    async def _run_once(self, ready: asyncio.Future[int]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self.module,
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=READ_AHEAD)
        try:
            _send(writer, self.settings())
            self._writer = writer
            until = 0.0
            while (message := await receive(reader)) is not None:
                self._handle(message, writer, ready)
                # Many questions may have come together, and reading the next one need not wait.
                if self._broker.clock() > until:
                    await asyncio.sleep(0)
                    until = self._broker.clock() + TURN
            await process.wait()
        finally:
            self._writer = None
            writer.close()
            self.gone()
            await _end(process)

    def _handle(self, message: Message, writer: asyncio.StreamWriter, ready: asyncio.Future[int]) -> None:
        """Answer a question of the process."""
        if "number" not in message:
            self._hear(message, ready)
            return

        def answer(attached: bytes = b"", **found: Any) -> None:
            _send(writer, {"number": message["number"], **found}, attached)

        def work() -> None:
            try:
                self.questions()[message["ask"]](message, answer)
            except Exception:  # a plug-in may do anything
                self._logger.exception("internal error")
                answer(**self.sorry)

        self._at_work(work)

    def _hear(self, message: Message, ready: asyncio.Future[int]) -> None:
        """Take what the process says unasked."""
        if "refused" in message:
            address, code, reason = message["refused"]
            tell_refused(self._broker, Credentials("", None, None, address), code, reason)
        elif "left" in message:
            self.left(message["left"])
        elif "ended" in message:
            self.ended(message["ended"])
        elif ready.done():
            pass  # it was started again
        elif "port" in message:
            ready.set_result(message["port"])
        else:
            ready.set_exception(OSError(0, message["failed"]))


def _send(writer: asyncio.StreamWriter, message: Message, attached: bytes = b"") -> None:
    """Send a message to a process, unless it is gone."""
    if not writer.is_closing():
        writer.write(frame(message, attached))
        if attached:
            writer.write(attached)


def log_settings(config: Config) -> Message:
    """Return what a process needs to write its log as the broker does."""
    return {"levels": config.log_level, "format": config.logging.format}


def tls_settings(tls: Tls) -> Message:
    """Return what a process needs of the [tls] table."""
    return {
        "certificate": tls.certificate,
        "key": tls.key or tls.certificate,
        "client_ca": tls.client_ca,
        "require_client_certificate": tls.require_client_certificate,
        "certificate_user": tls.certificate_user,
        "minimum_version": tls.minimum_version,
    }


def credentials_in(who: Message) -> Credentials:
    """Return what a process was told by a client of its own."""
    password = who["password"]
    return Credentials(
        "",
        who["username"],
        None if password is None else password.encode(),
        who["address"],
        who["certificate"],
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    """See to it that a process has ended; it does so by itself when its socket is closed."""
    try:
        await asyncio.wait_for(process.wait(), ENOUGH)
    except TimeoutError:
        process.kill()
        await process.wait()

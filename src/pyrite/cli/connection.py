"""A command's connection to the broker: options, errors, and exit codes."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from pyrite.cli.broker_options import add_broker_options, add_tls_options, credentials_of, endpoint_of
from pyrite.cli.errors import CommandError, UsageError, describe, reason_of
from pyrite.cli.properties import properties_of
from pyrite.cli.session_options import add_session_options, session_of
from pyrite.client import Client, ClientError, ConnectError, ConnectionLost, SubscribeError
from pyrite.client.address import shown
from pyrite.process.terminal import printable
from pyrite.protocols.mqtt.packets import V5
from pyrite.protocols.mqtt.reasons import Reason


def add_connection_options(parser: argparse.ArgumentParser, with_session: bool = False) -> None:
    """Add the options of every command that connects; `with_session` adds the session options of `pub` and
    `sub`.
    """
    add_broker_options(parser)
    if with_session:
        add_session_options(parser)
    else:
        parser.set_defaults(properties=[], protocol_version=V5)
    add_tls_options(parser)


class CommandConnection:
    """A command's client, and every way its work may end.

    With `reconnect`, the work continues after a lost connection or a broker shutdown. With `session`, the
    command has the session options.
    """

    def __init__(
        self, program: str, args: argparse.Namespace, *, reconnect: bool = False, session: bool = False
    ) -> None:
        self.endpoint = endpoint_of(args)
        self._program = program
        self._args = args
        self._reconnect = reconnect
        self._stopped: asyncio.Event = asyncio.Event()
        self._outcome: int | CommandError = 0
        if args.debug:
            self._log_to_stderr()
        options: dict[str, Any] = credentials_of(args, self.endpoint)
        if session:
            options |= session_of(args, program)
        elif self.endpoint.topic is not None:
            raise UsageError(f"-L {shown(args.url)}: this command takes no topic in the URL.")
        else:  # a reconnecting command subscribes again and receives retained messages again
            options["session_expiry"] = 0
        self.client = Client(
            self.endpoint.address,
            reconnect=reconnect,
            longest_pause=1.0,  # an interactive user is waiting
            on_disconnect=self._lost,
            **options,
        )

    @property
    def is_mqtt5(self) -> bool:
        """True if properties and reason codes can be used."""
        return bool(self._args.protocol_version == V5)

    def properties(self, command: str) -> dict[str, Any]:
        """Return the properties that `-D` set for this packet."""
        return properties_of(command, self._args.properties)

    def warn(self, message: str) -> None:
        """Print a warning on stderr unless --quiet is set."""
        if not self._args.quiet:
            print(f"{self._program}: {printable(message)}", file=sys.stderr, flush=True)

    def stop(self, outcome: int | CommandError) -> None:
        """End the work with an exit code or an error, at whatever point it is."""
        if not self._stopped.is_set():
            self._outcome = outcome
            self._stopped.set()

    async def run(self, work: Callable[[], Awaitable[int]]) -> int:
        """Connect, work, and disconnect normally so that no will is published; return the exit code."""
        working = asyncio.ensure_future(self._connect_and(work))
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
        except ClientError as error:
            raise self._explain(error) from None
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)
            await self.client.close(self.properties("disconnect"))
        if isinstance(self._outcome, CommandError):
            raise self._outcome
        return self._outcome

    async def _connect_and(self, work: Callable[[], Awaitable[int]]) -> int:
        await self.client.connect()
        return await work()

    def _lost(self, error: ClientError) -> None:
        explained = self._explain(error)
        # Reconnecting after a session takeover would take it back, and so on without end.
        worth_retrying = isinstance(error, ConnectionLost) and error.reason in (
            None,
            Reason.SERVER_SHUTTING_DOWN,
        )
        if self._reconnect and worth_retrying:
            self.warn(f"{explained} Reconnecting.")
        else:
            self.stop(explained)

    def _explain(self, error: ClientError) -> CommandError:
        where = self.endpoint
        if isinstance(error, ConnectError) and error.reason is not None:
            why = describe(error.reason, error.said)
            return CommandError(f"{where} refused the connection: {why}.", error.reason)
        if isinstance(error, ConnectError) and isinstance(error.__cause__, OSError):
            why = reason_of(error.__cause__)
            return CommandError(f"cannot connect to {where}: {why}.{_advice(error.__cause__)}")
        if isinstance(error, ConnectError):
            is_web = where.address.scheme in ("ws", "wss")
            advice = "" if is_web else " Does it support this MQTT version, and does it expect TLS?"
            return CommandError(f"{error}.{advice}")
        if isinstance(error, ConnectionLost) and error.reason is not None:
            why = describe(error.reason, error.said)
            return CommandError(f"{where} closed the connection: {why}.", error.reason or 1)
        if isinstance(error, ConnectionLost):
            return CommandError(f"the connection to {where} was lost.")
        if isinstance(error, SubscribeError):
            refusals = (refused_subscription(*each, error.said) for each in error.refused.items())
            return CommandError(" ".join(refusals), error.reason)
        return CommandError(f"{error}.")

    def _log_to_stderr(self) -> None:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"{self._program}: %(message)s"))
        log = logging.getLogger("pyrite.client")
        log.addHandler(handler)
        log.setLevel(logging.DEBUG)


def refused_subscription(topic_filter: str, reason: int, said: str = "") -> str:
    return f"the broker refused the subscription to {topic_filter}: {describe(reason, said)}."


def _advice(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return " Is a broker running there? Start one with `pyrite serve`."
    if "certificate verify failed" in str(error):
        return " Name the trusted authority with --cafile."
    return ""

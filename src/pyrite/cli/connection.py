"""One MQTT connection of `pyrite pub` or `pyrite sub`, driven from the command's own thread."""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

from paho.mqtt.client import ConnectFlags, DisconnectFlags, WebsocketConnectionError
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from pyrite.cli.connection_options import (
    SESSION_NEVER_EXPIRES,
    CommandError,
    UsageError,
    check_connection_options,
    client_identifier,
    endpoint_of,
    reason_of,
    tls_context,
)
from pyrite.cli.paho_client import BufferedSocket, MendedClient
from pyrite.cli.properties import Property, build_properties

CONNECT_SECONDS = 10.0
DISCONNECT_SECONDS = 5.0

# The exit codes of MQTT 3's return codes; paho translates those to MQTT 5's reason codes.
_MQTT3_RETURN_CODES = {132: 1, 133: 2, 136: 3, 134: 4, 135: 5}
_SERVER_SHUTTING_DOWN = 139


class ConnectionLost(CommandError):
    """The connection ended and we did not end it."""

    def __init__(self, message: str, exit_code: int = 1, *, worth_retrying: bool) -> None:
        super().__init__(message, exit_code)
        self.worth_retrying = worth_retrying


def run_command(program: str, args: argparse.Namespace, command: Callable[[argparse.Namespace], int]) -> int:
    """Run a command so that whatever happens ends in one line and an exit code, never in a traceback."""
    try:
        return command(args)
    except CommandError as error:
        message, exit_code = str(error), error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the user gets a line whatever went wrong
        message, exit_code = f"unexpected {type(error).__name__}: {error}", 1
    if not args.quiet:
        print(f"{program}: {message}", file=sys.stderr)
    return exit_code


class Connection:
    """A connection to the broker that the options name.

    There is no thread: `turn` waits for something to happen and handles it, and whoever drives the connection
    may watch further files in the same wait. Whatever ends the connection is raised from there.
    """

    def __init__(self, program: str, args: argparse.Namespace) -> None:
        check_connection_options(args)
        self.program = program
        self.endpoint = endpoint_of(args)
        self.broker_limits: Properties | None = None
        # Set when no further packet shall be read, and so acknowledged.
        self.enough = False
        self.session_present = False
        self._args = args
        self._connected = False
        self._opened_before = False
        self._failure: CommandError | None = None
        self.client = self._configured_client()

    @property
    def is_mqtt5(self) -> bool:
        """Whether properties and reason codes exist."""
        return bool(self._args.protocol_version == MQTTProtocolVersion.MQTTv5)

    def properties(self, command: str) -> Properties | None:
        """Return what `-D` said about this packet."""
        return build_properties(command, self._args.properties)

    def debug(self, message: str) -> None:
        """Tell those who asked with --debug."""
        if self._args.debug:
            print(f"{self.program}: {message}", file=sys.stderr, flush=True)

    def warn(self, message: str) -> None:
        """Tell all but those who asked for --quiet."""
        if not self._args.quiet:
            print(f"{self.program}: {message}", file=sys.stderr, flush=True)

    def open(self) -> None:
        """Connect, and wait for the broker's welcome; raises CommandError if there is none."""
        self._connected = False
        self._failure = None
        try:
            if self._opened_before:
                self.client.reconnect()
            else:
                self._first_connect()
        except OSError as error:
            raise self._cannot_connect(error) from None
        except WebsocketConnectionError as error:
            raise ConnectionLost(
                f"cannot connect to {self.endpoint}: {error}.", worth_retrying=True
            ) from None
        deadline = time.monotonic() + CONNECT_SECONDS
        while not self._connected:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise ConnectionLost(
                    f"{self.endpoint} accepted the connection but did not answer CONNECT within "
                    f"{CONNECT_SECONDS:.0f} seconds. Does it speak MQTT?",
                    worth_retrying=True,
                )
            self.turn(remaining)
        self._opened_before = True

    def turn(
        self, timeout: float = 1.0, watch: Iterable[int] = (), watch_hangup: Iterable[int] = ()
    ) -> set[int]:
        """Wait at most `timeout` seconds for something to happen and handle it.

        Returns those of `watch` that can be read, and those of `watch_hangup` whose reader is gone.
        """
        sock = self._socket()
        if sock is None:
            raise self._failure or ConnectionLost(
                f"{self.endpoint} closed the connection.", worth_retrying=True
            )
        self._flush(sock)
        number = sock.fileno()
        poller = select.poll()
        interest = 0 if self.enough else select.POLLIN
        poller.register(number, interest | (select.POLLOUT if self.unsent else 0))
        for other in watch:
            poller.register(other, select.POLLIN)
        for other in watch_hangup:
            poller.register(other, 0)
        # No wait may outlast a keep alive that is due, which loop_misc looks after.
        waiting = sock.pending() and not self.enough
        ready = dict(poller.poll(0 if waiting else max(0.0, min(timeout, 1.0)) * 1000))
        happened = ready.pop(number, 0)
        if happened & ~select.POLLOUT or waiting:
            self.client.loop_read()
            while sock.pending() and self._socket() is sock and not self.enough:
                self.client.loop_read()
        if happened & select.POLLOUT and self._socket() is sock:
            self._flush(sock)
            self.client.loop_write()
        self.client.loop_misc()
        if self._failure is not None:
            raise self._failure
        return set(ready)

    @property
    def unsent(self) -> bool:
        """Whether something still waits to be handed to the network."""
        sock = self._socket()
        return sock is not None and (sock.unsent or self.client.want_write())

    def close(self) -> None:
        """Say goodbye, so that the broker discards the will; a broker that is already gone is no error."""
        self.enough = True
        deadline = time.monotonic() + DISCONNECT_SECONDS
        try:
            while self.unsent and time.monotonic() < deadline:
                self.turn(deadline - time.monotonic())
            self.client.on_disconnect = None
            self.client.disconnect(properties=self.properties("disconnect"))
        except (CommandError, OSError):
            pass

    def _socket(self) -> BufferedSocket | None:
        return cast("BufferedSocket | None", self.client.socket())

    def _flush(self, sock: BufferedSocket) -> None:
        try:
            sock.flush()
        except OSError as error:
            # What the broker had to say before it hung up, such as the reason, is still to be read.
            self.debug(f"cannot send: {reason_of(error)}")

    def _configured_client(self) -> MendedClient:
        args = self._args
        clean_session = None if self.is_mqtt5 else not args.disable_clean_session
        client = MendedClient(
            CallbackAPIVersion.VERSION2,
            client_id=client_identifier(args, self.program),
            clean_session=clean_session,
            protocol=args.protocol_version,
            transport=self.endpoint.transport,
            reconnect_on_failure=False,
        )
        client.connect_timeout = CONNECT_SECONDS
        # The commands keep their own window, which knows the broker's Receive Maximum; paho's does not.
        client.max_inflight_messages = 0
        username = args.username if args.username is not None else self.endpoint.username
        password = args.pw if args.pw is not None else self.endpoint.password
        if password is not None and username is None:
            raise UsageError("a password needs a user name: add -u.")
        client.username_pw_set(username, password)
        if args.will_topic is not None:
            payload = os.fsencode(args.will_payload or "")
            properties = self.properties("will")
            client.will_set(args.will_topic, payload, args.will_qos, args.will_retain, properties)
        if self.endpoint.transport == "websockets":
            client.ws_set_options(path=self.endpoint.path)
        if self.endpoint.tls:
            client.tls_set_context(tls_context(args))
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        if args.debug:
            client.on_log = lambda _client, _userdata, _level, message: self.debug(message)
        return client

    def _first_connect(self) -> None:
        args = self._args
        where: dict[str, Any] = {
            "host": self.endpoint.host,
            "port": self.endpoint.port,
            "keepalive": args.keepalive,
            "bind_address": args.bind_address,
        }
        if self.is_mqtt5:
            # Unless told otherwise, paho starts clean the first time, and continues the session thereafter.
            if args.disable_clean_session:
                where["clean_start"] = False
            expiry = args.session_expiry_interval
            given = list(args.properties)
            named = any((each.command, each.name) == ("connect", "session-expiry-interval") for each in given)
            if expiry is None and args.disable_clean_session and not named:
                expiry = SESSION_NEVER_EXPIRES
            if expiry is not None:
                given.append(Property("connect", "session-expiry-interval", expiry))
            where["properties"] = build_properties("connect", given)
        self.client.connect(**where)

    def _cannot_connect(self, error: OSError) -> ConnectionLost:
        advice = ""
        if isinstance(error, ConnectionRefusedError | FileNotFoundError):
            advice = " Is a broker running there? Start one with `pyrite serve`."
        elif "certificate verify failed" in str(error):
            advice = " Name the authority to trust with --cafile."
        return ConnectionLost(
            f"cannot connect to {self.endpoint}: {reason_of(error)}.{advice}", worth_retrying=True
        )

    def _on_connect(
        self,
        _client: Any,
        _userdata: Any,
        flags: ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if reason.is_failure:
            exit_code = reason.value if self.is_mqtt5 else _MQTT3_RETURN_CODES.get(reason.value, 1)
            self._failure = CommandError(
                f"{self.endpoint} refused the connection: {describe(reason, properties)}.", exit_code
            )
            return
        self._connected = True
        self.session_present = flags.session_present
        self.broker_limits = properties
        self.debug(f"connected to {self.endpoint}")

    def _on_disconnect(
        self,
        _client: Any,
        _userdata: Any,
        flags: DisconnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if self._failure is not None:
            return
        if flags.is_disconnect_packet_from_server:
            self._failure = ConnectionLost(
                f"{self.endpoint} disconnected us: {describe(reason, properties)}.",
                exit_code=reason.value or 1,
                # Whoever took our session over would lose it to us again, and so on; other reasons last.
                worth_retrying=reason.value == _SERVER_SHUTTING_DOWN,
            )
        elif self._connected:
            self._failure = ConnectionLost(
                f"the connection to {self.endpoint} was lost.", worth_retrying=True
            )
        else:
            self._failure = ConnectionLost(
                f"{self.endpoint} closed the connection without answering CONNECT. "
                "Does it speak this version of MQTT (-V), and does it expect TLS?",
                worth_retrying=True,
            )


def describe(reason: ReasonCode, properties: Properties | None) -> str:
    """Return a reason code's name, and the reason string if the broker gave one."""
    said = getattr(properties, "ReasonString", None)
    return f"{reason.getName()} ({said})" if said else str(reason.getName())

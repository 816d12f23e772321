"""`pyrite pub`: publish a message, a file or the lines of stdin, and wait until the broker has them."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from pyrite.cli.connection import Connection, describe, run_command
from pyrite.cli.connection_options import CommandError, UsageError, add_connection_options

PROGRAM = "pyrite pub"
LARGEST_PAYLOAD = 268_435_455
# How many messages may wait for their acknowledgement: enough to keep the broker busy over a slow network,
# and few enough that 100,000 lines on stdin do not gather in memory.
WINDOW = 200
READ_BYTES = 65536

DESCRIPTION = """\
Publish to an MQTT broker: one message (-m, -n), a file (-f), all of stdin (-s) or each of its lines (-l).
With QoS 1 and 2, waits until the broker has acknowledged every message. The options are mosquitto_pub's."""

EPILOG = """\
examples:
  pyrite pub -t sensors/temperature -m 21.5
  pyrite pub -t switches/kitchen -m on -q 1 -r
  pyrite pub -t switches/kitchen -r -n                      (clear the retained message)
  pyrite pub -h broker.example -u ann -P secret -t photos/door -f door.jpg -q 1
  tail -F app.log | pyrite pub -t logs/app -l -q 1
  pyrite pub -t orders -m '{"id": 7}' -D publish content-type application/json -D publish user-property run 7
  pyrite pub -L wss://broker.example/mqtt -t hello -m world

exit codes: 0 published; 2 wrong options; the broker's reason code if it refused; 1 any other failure."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `pub` to the commands of the command line."""
    parser = commands.add_parser(
        "pub",
        help="publish messages",
        usage="pyrite pub [options] -t TOPIC {-m MESSAGE | -f FILE | -l | -s | -n}",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    message = parser.add_argument_group("message")
    message.add_argument("-t", "--topic", help="the topic to publish to")
    source = message.add_mutually_exclusive_group()
    source.add_argument("-m", "--message", help="the payload (one starting with a dash: --message=-text)")
    source.add_argument("-f", "--file", help="publish this file's content as one message")
    source.add_argument(
        "-l", "--stdin-line", action="store_true", help="publish each line of stdin as a message"
    )
    source.add_argument("-s", "--stdin-file", action="store_true", help="publish all of stdin as one message")
    source.add_argument("-n", "--null-message", action="store_true", help="publish an empty message")
    message.add_argument(
        "-q", "--qos", type=int, choices=(0, 1, 2), default=0, help="quality of service (default: 0)"
    )
    message.add_argument("-r", "--retain", action="store_true", help="have the broker retain the message")
    message.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="publish it N times (not with -l)"
    )
    message.add_argument(
        "--repeat-delay", type=float, default=0.0, metavar="SECONDS", help="time between the repetitions"
    )
    message.add_argument(
        "-M",
        "--max-inflight",
        type=int,
        default=WINDOW,
        metavar="N",
        help=f"messages that may wait for acknowledgement at a time (default: {WINDOW})",
    )
    add_connection_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Publish what the options say; returns the exit code."""
    return run_command(PROGRAM, args, _publish)


def _publish(args: argparse.Namespace) -> int:
    connection = Connection(PROGRAM, args)
    if args.topic is None:
        args.topic = connection.endpoint.topic
    _check_options(args)
    # Read before connecting: a broker would wait for us no longer than its patience for an idle client.
    payload = b"" if args.stdin_line else _payload(args)
    publisher = Publisher(connection, args)
    connection.open()
    try:
        publisher.check_limits()
        if args.stdin_line:
            for line in publisher.lines(sys.stdin.fileno()):
                publisher.publish(line)
        else:
            for repetition in range(args.repeat):
                if repetition:
                    publisher.wait(args.repeat_delay)
                publisher.publish(payload)
        publisher.finish()
    except KeyboardInterrupt:
        connection.close()
        raise
    except CommandError as error:
        connection.close()
        unacknowledged = publisher.unacknowledged
        if not unacknowledged or publisher.refusal:
            raise
        raise CommandError(f"{error} Messages not acknowledged: {unacknowledged}.", error.exit_code) from None
    connection.close()
    return 0


class Publisher:
    """Publishes through a connection, keeping to the broker's limits, and remembers what became of it."""

    def __init__(self, connection: Connection, args: argparse.Namespace) -> None:
        self.refusal: CommandError | None = None
        self.unacknowledged = 0
        self._connection = connection
        self._client = connection.client
        if args.qos:
            self._client.on_publish = self._on_publish
        self._args = args
        self._topic: str = args.topic
        self._properties = connection.properties("publish")
        self._window: int = args.max_inflight
        self._largest = LARGEST_PAYLOAD

    def check_limits(self) -> None:
        """Refuse what the broker's CONNACK rules out: sent anyway, it would end the connection."""
        limits: Any = self._connection.broker_limits
        # Paho counts on us to keep the Receive Maximum [MQTT-3.3.4-7].
        self._window = min(self._window, getattr(limits, "ReceiveMaximum", 65535))
        if self._args.qos > getattr(limits, "MaximumQoS", 2):  # [MQTT-3.2.2-11]
            raise CommandError(f"the broker supports QoS {limits.MaximumQoS} at most: lower -q.", 155)
        if self._args.retain and not getattr(limits, "RetainAvailable", 1):  # [MQTT-3.2.2-14]
            raise CommandError("the broker does not support retained messages: drop -r.", 154)
        # Fixed header, topic length and packet identifier take at most 9 bytes. [MQTT-3.2.2-15]
        overhead = 9 + len(self._topic.encode())
        if self._properties is not None:
            overhead += len(self._properties.pack())  # type: ignore[no-untyped-call]
        self._largest = getattr(limits, "MaximumPacketSize", LARGEST_PAYLOAD) - overhead
        alias = getattr(self._properties, "TopicAlias", 0)
        if alias > getattr(limits, "TopicAliasMaximum", 0):  # [MQTT-3.2.2-17], [MQTT-3.2.2-18]
            raise CommandError(f"the broker does not accept topic alias {alias}.", 148)

    def publish(self, payload: bytes) -> None:
        """Publish one message, as soon as there is room for it on the way to the broker."""
        if len(payload) > self._largest:
            raise CommandError(
                f"a message of {len(payload)} bytes is too large: the broker takes {self._largest} at most.",
                149,
            )
        while self._client.want_write() or self.unacknowledged >= self._window:
            self._turn()
        if self._args.qos:
            self.unacknowledged += 1
        info = self._client.publish(self._topic, payload, self._args.qos, self._args.retain, self._properties)
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            self._turn()  # raises what became of the connection
            raise CommandError(f"cannot publish: {info.rc.name}.")
        if self.refusal is not None:
            raise self.refusal
        if hasattr(self._properties, "TopicAlias"):
            # The broker knows the alias from now on: that is what it is for.
            self._topic = ""

    def lines(self, source: int) -> Iterator[bytes]:
        """Yield the lines of a file as they come; the connection is kept alive while none do."""
        rest = b""
        while True:
            while source not in self._turn(watch=(source,)):
                pass
            block = os.read(source, READ_BYTES)
            if not block:
                break
            if b"\n" not in block:
                rest += block
                continue
            first, *lines = block.split(b"\n")
            yield rest + first
            rest = lines.pop()
            yield from lines
        if rest:
            yield rest

    def wait(self, seconds: float) -> None:
        """Let time pass without neglecting the connection."""
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            self._turn(remaining)

    def finish(self) -> None:
        """Wait until every message is sent and, with QoS 1 and 2, acknowledged."""
        while self.unacknowledged or self._connection.unsent:
            self._turn()

    def _turn(self, timeout: float = 1.0, watch: tuple[int, ...] = ()) -> set[int]:
        ready = self._connection.turn(timeout, watch)
        if self.refusal is not None:
            raise self.refusal
        return ready

    def _on_publish(
        self, _client: Any, _userdata: Any, _mid: int, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self.unacknowledged -= 1
        if reason.is_failure and self.refusal is None:
            self.refusal = CommandError(
                f"the broker refused the message on {self._args.topic}: {describe(reason, properties)}.",
                reason.value,
            )


def _check_options(args: argparse.Namespace) -> None:
    if args.topic is None:
        raise UsageError("which topic? Name it with -t.")
    if not args.topic or "+" in args.topic or "#" in args.topic:  # [MQTT-3.3.2-2]
        raise UsageError(f"-t {args.topic!r}: a topic to publish to has no wildcards and is not empty.")
    if len(os.fsencode(args.topic)) > 65535:
        raise UsageError("-t: a topic is at most 65535 bytes long.")
    sources = (
        args.message is not None,
        args.file is not None,
        args.stdin_line,
        args.stdin_file,
        args.null_message,
    )
    if not any(sources):
        raise UsageError(
            "publish what? Use -m MESSAGE, -f FILE, -l (lines of stdin), -s (all of stdin) or -n (nothing)."
        )
    if (args.stdin_line or args.stdin_file) and sys.stdin is None:  # the shell's <&-
        raise UsageError("stdin is closed: there is nothing to read messages from.")
    if args.repeat < 1 or args.repeat_delay < 0 or args.max_inflight < 1:
        raise UsageError("--repeat and --max-inflight are at least 1, and --repeat-delay is not negative.")
    if args.stdin_line and args.repeat > 1:
        raise UsageError("--repeat does not go with -l.")
    for each in args.properties:
        if each.command in ("subscribe", "unsubscribe"):
            raise UsageError(f"-D {each.command}: pyrite pub does not {each.command}.")


def _payload(args: argparse.Namespace) -> bytes:
    if args.message is not None:
        return os.fsencode(args.message)
    try:
        if args.file is not None:
            with open(args.file, "rb") as file:
                payload = file.read(LARGEST_PAYLOAD + 1)
        elif args.stdin_file:
            payload = sys.stdin.buffer.read(LARGEST_PAYLOAD + 1)
        else:
            return b""
    except OSError as error:
        raise CommandError(f"cannot read {args.file or 'stdin'}: {error.strerror}.") from None
    if len(payload) > LARGEST_PAYLOAD:
        raise CommandError(
            f"{args.file or 'stdin'} is too large: an MQTT message holds 268435455 bytes at most."
        )
    return payload

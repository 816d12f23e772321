"""`pyrite pub`: publish a message, a file or lines of stdin, and wait for acknowledgements."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterable

from pyrite.cli.connection import CommandConnection, add_connection_options
from pyrite.cli.errors import CommandError, UsageError, describe, run_command
from pyrite.client import ConnectionLost, PublishError

PROGRAM = "pyrite pub"
MAX_PAYLOAD = 268_435_455
# Unacknowledged messages: enough to keep the broker busy over a slow network, and few enough that 100,000
# lines of stdin do not pile up in memory.
DEFAULT_MAX_INFLIGHT = 200
READ_SIZE = 65536

DESCRIPTION = """\
Publish to an MQTT broker: one message (-m, -n), a file (-f), all of stdin (-s) or each of its lines (-l).
With QoS 1 and 2, wait until the broker has acknowledged every message. The options are mosquitto_pub's."""

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
    source.add_argument("-m", "--message", help="the payload (if it starts with a dash: --message=-text)")
    source.add_argument("-f", "--file", help="publish this file's content as one message")
    source.add_argument(
        "-l", "--stdin-line", action="store_true", help="publish each line of stdin as a message"
    )
    source.add_argument("-s", "--stdin-file", action="store_true", help="publish all of stdin as one message")
    source.add_argument("-n", "--null-message", action="store_true", help="publish an empty message")
    message.add_argument(
        "-q", "--qos", type=int, choices=(0, 1, 2), default=0, help="quality of service (default: 0)"
    )
    message.add_argument("-r", "--retain", action="store_true", help="ask the broker to retain the message")
    message.add_argument(
        "-M",
        "--max-inflight",
        type=int,
        default=DEFAULT_MAX_INFLIGHT,
        metavar="N",
        help=f"maximum number of unacknowledged messages (default: {DEFAULT_MAX_INFLIGHT})",
    )
    add_connection_options(parser, with_session=True)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    return run_command(PROGRAM, args, _publish)


async def _publish(args: argparse.Namespace) -> int:
    connection = CommandConnection(PROGRAM, args, session=True)
    if args.topic is None:
        args.topic = connection.endpoint.topic
    _check_options(args)
    # Read the input before connecting: the broker drops a client that stays idle after CONNECT.
    payload = b"" if args.stdin_line else _payload(args)
    publisher = PublishCommand(connection, args)

    async def work() -> int:
        publisher.check_limits()
        if args.stdin_line:
            async for lines in lines_of(sys.stdin.fileno()):
                await publisher.publish(lines)
        else:
            await publisher.publish([payload])
        await publisher.finish()
        return 0

    try:
        return await connection.run(work)
    except CommandError as error:
        unacknowledged = publisher.unacknowledged
        if not unacknowledged or publisher.refusal:
            raise
        raise CommandError(f"{error} Messages not acknowledged: {unacknowledged}.", error.exit_code) from None


class PublishCommand:
    """Publishes within the broker's limits, and tracks acknowledgements and refusals."""

    def __init__(self, connection: CommandConnection, args: argparse.Namespace) -> None:
        self.refusal: CommandError | None = None
        self.unacknowledged = 0
        self._client = connection.client
        self._args = args
        self._properties = connection.properties("publish")
        self._news = asyncio.Event()

    def check_limits(self) -> None:
        """Raise a CommandError if CONNACK rules out what the options ask for."""
        limits = self._client.capabilities
        if self._args.qos > limits.get("maximum_qos", 2):  # [MQTT-3.2.2-11]
            raise CommandError(f"the broker supports QoS {limits['maximum_qos']} at most: lower -q.", 155)
        if self._args.retain and not limits.get("retain_available", 1):  # [MQTT-3.2.2-14]
            raise CommandError("the broker does not support retained messages: drop -r.", 154)
        alias = self._properties.get("topic_alias", 0)
        if alias > limits.get("topic_alias_maximum", 0):  # [MQTT-3.2.2-17], [MQTT-3.2.2-18]
            raise CommandError(f"the broker does not accept topic alias {alias}.", 148)

    async def publish(self, payloads: Iterable[bytes]) -> None:
        """Publish messages, waiting for room in the in-flight window."""
        args, client, properties = self._args, self._client, self._properties
        try:
            if args.qos:
                for payload in payloads:
                    await self._until_fewer_than(args.max_inflight)
                    sent = client.publish_soon(args.topic, payload, args.qos, args.retain, properties)
                    self.unacknowledged += 1
                    sent.add_done_callback(self._settled)
            else:
                for payload in payloads:
                    client.publish_nowait(args.topic, payload, args.retain, properties)
                await asyncio.sleep(0)  # let the event loop read incoming packets
                await client.drained()
        except PublishError as error:
            raise CommandError(f"{error}.", error.reason) from None

    async def finish(self) -> None:
        """Wait until every message is sent and, with QoS 1 and 2, acknowledged."""
        await self._until_fewer_than(1)
        await self._client.drained(everything=True)

    async def _until_fewer_than(self, number: int) -> None:
        while self.unacknowledged >= number and self.refusal is None:
            self._news.clear()
            await self._news.wait()
        if self.refusal is not None:
            raise self.refusal

    def _settled(self, sent: asyncio.Future[None]) -> None:
        error = sent.exception()
        if isinstance(error, ConnectionLost):
            return  # CommandConnection ends the work
        self.unacknowledged -= 1
        self._news.set()
        if isinstance(error, PublishError) and self.refusal is None:
            why = describe(error.reason, error.said)
            self.refusal = CommandError(
                f"the broker refused the message on {self._args.topic}: {why}.", error.reason
            )


async def lines_of(source: int) -> AsyncIterator[list[bytes]]:
    """Yield lists of lines as they arrive, each with all lines available."""
    rest = b""
    async for block in _blocks_of(source):
        *lines, rest = (rest + block).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


async def _blocks_of(source: int) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    while True:
        readable = asyncio.Event()
        try:
            loop.add_reader(source, readable.set)
        except OSError:
            pass  # a regular file is always readable
        else:
            try:
                await readable.wait()
            finally:
                loop.remove_reader(source)
        block = os.read(source, READ_SIZE)
        if not block:
            return
        yield block


def _check_options(args: argparse.Namespace) -> None:
    if args.topic is None:
        raise UsageError("no topic given: add -t.")
    if not args.topic or "+" in args.topic or "#" in args.topic:  # [MQTT-3.3.2-2]
        raise UsageError(f"-t {args.topic!r}: a topic name must not be empty or contain wildcards.")
    if len(os.fsencode(args.topic)) > 65535:
        raise UsageError("-t: a topic name is at most 65535 bytes long.")
    sources = (
        args.message is not None,
        args.file is not None,
        args.stdin_line,
        args.stdin_file,
        args.null_message,
    )
    if not any(sources):
        raise UsageError(
            "no message given: use -m MESSAGE, -f FILE, -l (lines of stdin), -s (all of stdin) or -n (empty)."
        )
    if (args.stdin_line or args.stdin_file) and sys.stdin is None:  # the shell's <&-
        raise UsageError("stdin is closed, but the message is to be read from it.")
    if args.max_inflight < 1:
        raise UsageError("--max-inflight must be at least 1.")
    for each in args.properties:
        if each.command in ("subscribe", "unsubscribe"):
            raise UsageError(f"-D {each.command}: pyrite pub sends no {each.command.upper()} packet.")


def _payload(args: argparse.Namespace) -> bytes:
    if args.message is not None:
        return os.fsencode(args.message)
    try:
        if args.file is not None:
            with open(args.file, "rb") as file:
                payload = file.read(MAX_PAYLOAD + 1)
        elif args.stdin_file:
            payload = sys.stdin.buffer.read(MAX_PAYLOAD + 1)
        else:
            return b""
    except OSError as error:
        raise CommandError(f"cannot read {args.file or 'stdin'}: {error.strerror}.") from None
    if len(payload) > MAX_PAYLOAD:
        raise CommandError(
            f"{args.file or 'stdin'} is too large: an MQTT payload holds at most 268435455 bytes."
        )
    return payload

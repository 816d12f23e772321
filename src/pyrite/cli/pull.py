"""`pyrite pull`: fetch messages from a consumer, print them, and acknowledge them."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json

from pyrite.cli.arguments import accept_times_ago, positive_int
from pyrite.cli.connection import CommandConnection, add_connection_options
from pyrite.cli.errors import run_command
from pyrite.cli.message_format import text_of
from pyrite.client import Pulled
from pyrite.process.terminal import on_terminal, printable

PROGRAM = "pyrite pull"
MAX_FETCHED = 1_000
"""Messages per fetch."""
POLL_INTERVAL = 0.2
"""Seconds between polls for new messages."""

_EXAMPLES = """\
examples:
  pyrite pull billing -t 'orders/#'        print what consumer 'billing' has not fetched yet
  pyrite pull billing -n 10                at most 10 messages
  pyrite pull billing --follow --json      also print new messages as they arrive, as JSON
  pyrite pull billing --delete             delete the consumer

A consumer outlives the command. Several programs may pull from the same consumer: each message goes to one
of them, and is fetched again only if that program ends before it has printed the message.
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "pull",
        help="fetch messages from a consumer",
        usage="pyrite pull [options] NAME",
        description="Fetch messages from a named consumer of a running broker, print them, and "
        "acknowledge them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    accept_times_ago(parser)
    add_connection_options(parser)
    parser.add_argument("name", type=_name, help="the consumer's name")
    parser.add_argument(
        "-t", "--topic", help="topic filter (default: the consumer's own, or # for a new consumer)"
    )
    parser.add_argument(
        "--from",
        dest="start",
        default="earliest",
        metavar="POSITION",
        help="where a new consumer starts: earliest, latest, an offset, -1h, a time (default: earliest)",
    )
    parser.add_argument(
        "-n", "--count", type=positive_int, help="at most this many messages (default: all available)"
    )
    parser.add_argument("--follow", action="store_true", help="continue with new messages until Ctrl-C")
    parser.add_argument(
        "--json",
        action="store_true",
        help='print JSON lines; a payload that is not UTF-8 is base64, under "payload_base64"',
    )
    parser.add_argument(
        "--keep", action="store_true", help="do not acknowledge: the messages will be fetched again"
    )
    parser.add_argument("--delete", action="store_true", help="delete the consumer and exit")
    parser.set_defaults(run=_run)


def _name(text: str) -> str:
    if not text or set(text) & set("+#\0"):  # the name becomes a topic level
        raise argparse.ArgumentTypeError(f"a consumer name must not be empty or contain + or #, got {text!r}")
    return text


def _run(args: argparse.Namespace) -> int:
    return run_command(PROGRAM, args, _pull)


async def _pull(args: argparse.Namespace) -> int:
    connection = CommandConnection(PROGRAM, args)

    async def work() -> int:
        if args.delete:
            await connection.client.delete_consumer(args.name)
            return 0
        consumer = await connection.client.consumer(args.name, args.topic, start=args.start)
        left: int | None = args.count
        while left is None or left > 0:
            messages = await consumer.pull(MAX_FETCHED if left is None else min(left, MAX_FETCHED))
            for message in messages:
                _show(message, args.json)
            if messages and not args.keep:
                await consumer.ack(messages)
            if left is not None:
                left -= len(messages)
            if not messages:
                if not args.follow:
                    break
                await asyncio.sleep(POLL_INTERVAL)
        return 0

    return await connection.run(work)


def _show(message: Pulled, as_json: bool) -> None:
    terminal = on_terminal()
    if not as_json:
        topic, payload = message.topic, text_of(message.payload)
        if terminal:
            topic, payload = printable(topic), printable(payload, keep="\n\t")
        print(topic, payload, flush=True)
        return
    fields = {"place": message.place, "topic": message.topic}
    try:
        fields["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = base64.b64encode(message.payload).decode()
    text = json.dumps(fields, ensure_ascii=False)
    print(printable(text) if terminal else text, flush=True)

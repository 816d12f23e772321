"""`pyrite pull`: fetch messages from a named consumer, print them, and acknowledge them."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import re

from pyrite.cli.connection import Connection, add_connection_options
from pyrite.cli.errors import run_command
from pyrite.cli.message_format import text_of
from pyrite.client import Pulled
from pyrite.process.terminal import on_terminal, printable

PROGRAM = "pyrite pull"
PIECE = 1_000
"""Messages fetched at a time."""
PAUSE = 0.2
"""Seconds between two looks for new messages."""

_EXAMPLES = """\
examples:
  pyrite pull billing -t 'orders/#'        what no one has pulled as billing yet, then end
  pyrite pull billing -n 10                at most 10 messages
  pyrite pull billing --follow --json      and what comes from now on, as JSON
  pyrite pull billing --delete             forget the consumer

A consumer lasts: several programs that pull under one name share its messages, each message is given out
once, and again only if whoever took it ends before it is printed.
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "pull",
        help="fetch messages from a named consumer of a running broker",
        usage="pyrite pull [options] NAME",
        description="Fetch messages from a named consumer, print them, and acknowledge them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    # So that -1h is a value, as -1 is, and not an unknown option.
    parser._negative_number_matcher = re.compile(r"-[0-9]")
    add_connection_options(parser)
    parser.add_argument("name", type=_name, help="the consumer's name")
    parser.add_argument("-t", "--topic", help="its filter (default: the one it has; # when it is made)")
    parser.add_argument(
        "--from",
        dest="start",
        default="earliest",
        metavar="POSITION",
        help="where it begins, when it is made: earliest, latest, an offset, -1h, a time (default: earliest)",
    )
    parser.add_argument(
        "-n", "--count", type=_count, help="at most so many messages (default: all there are)"
    )
    parser.add_argument("--follow", action="store_true", help="go on with what comes, until Ctrl-C")
    parser.add_argument(
        "--json",
        action="store_true",
        help='a JSON object a line; a payload that is not UTF-8 is in base64, under "payload_base64"',
    )
    parser.add_argument("--keep", action="store_true", help="do not acknowledge: they are given out again")
    parser.add_argument("--delete", action="store_true", help="forget the consumer, and end")
    parser.set_defaults(run=_run)


def _name(text: str) -> str:
    if not text or set(text) & set("+#\0"):  # it is part of a topic
        raise argparse.ArgumentTypeError(f"expected a name without + and #, not {text!r}")
    return text


def _count(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a number above 0, not {text!r}")


def _run(args: argparse.Namespace) -> int:
    return run_command(PROGRAM, args, _pull)


async def _pull(args: argparse.Namespace) -> int:
    connection = Connection(PROGRAM, args)

    async def work() -> int:
        if args.delete:
            await connection.client.delete_consumer(args.name)
            return 0
        consumer = await connection.client.consumer(args.name, args.topic, start=args.start)
        left: int | None = args.count
        while left is None or left > 0:
            messages = await consumer.pull(PIECE if left is None else min(left, PIECE))
            for message in messages:
                _show(message, args.json)
            if messages and not args.keep:
                await consumer.ack(messages)
            if left is not None:
                left -= len(messages)
            if not messages:
                if not args.follow:
                    break
                await asyncio.sleep(PAUSE)
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

"""`pyrite sub`: subscribe and print messages."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pyrite.cli.connection import CommandConnection, add_connection_options
from pyrite.cli.errors import UsageError, run_command
from pyrite.cli.message_format import (
    Format,
    compile_format,
    for_terminal,
    json_line,
    payload_only,
    topic_and_payload,
)
from pyrite.cli.subscriber import RETAIN_HANDLING, SubscribeCommand
from pyrite.process.terminal import on_terminal

PROGRAM = "pyrite sub"

DESCRIPTION = """\
Subscribe to topics of an MQTT broker and print messages, until interrupted or until -C, -W or -E ends it.
Reconnects if the connection is lost. The options are mosquitto_sub's."""

EPILOG = """\
examples:
  pyrite sub -t 'sensors/#' -v
  pyrite sub -t 'sensors/+/temperature' -F '%I %t %p'
  pyrite sub -t orders -q 1 -i billing -c                   (keep the session; get missed messages)
  pyrite sub -t 'sensors/#' --json | jq .payload
  pyrite sub -t status -C 1 -W 5                            (one message, or exit code 27 after 5 seconds)
  pyrite sub -t 'old/#' --remove-retained --retained-only -W 5
  pyrite sub -L mqtts://ann:secret@broker.example/news/# --cafile ca.pem

formats (-F):
  %t topic         %p payload               %x %X payload in hexadecimal     %l payload length
  %q QoS           %r retain                %m packet identifier             %A topic alias
  %C content type  %R response topic        %D correlation data              %P user properties
  %E expiry        %F payload format        %S subscription identifier       %% a percent sign
  %I ISO time      %U Unix time             %j JSON                          %J JSON with a JSON payload
  @X strftime's %X, @N nanoseconds, @@; \\n \\t \\0 \\e and so on
  %10t sets a width, %-10t aligns left, %.10t truncates, %05l pads with zeros

exit codes: 0 done or interrupted; 27 timed out (-W); 2 wrong options; the broker's reason code if it refused;
1 any other failure."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "sub",
        help="subscribe and print messages",
        usage="pyrite sub [options] -t TOPIC [-t TOPIC ...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    what = parser.add_argument_group("subscription")
    what.add_argument("-t", "--topic", action="append", default=[], help="topic filter; may be repeated")
    what.add_argument("-q", "--qos", type=int, choices=(0, 1, 2), default=0, help="maximum QoS (default: 0)")
    what.add_argument(
        "--no-local", action="store_true", help="do not receive messages published by this client"
    )
    what.add_argument("--retain-as-published", action="store_true", help="keep the publisher's retain flag")
    what.add_argument(
        "--retain-handling",
        choices=tuple(RETAIN_HANDLING),
        default="always",
        help="when the broker sends its retained messages (default: always)",
    )

    which = parser.add_argument_group("messages")
    which.add_argument(
        "-T",
        "--filter-out",
        action="append",
        default=[],
        metavar="TOPIC",
        help="skip messages on this topic; may be repeated",
    )
    which.add_argument("-R", "--no-retain", action="store_true", help="skip retained messages")
    which.add_argument(
        "--retained-only", action="store_true", help="exit at the first message that is not retained"
    )
    which.add_argument(
        "--remove-retained", action="store_true", help="clear every retained message that arrives"
    )
    which.add_argument("-C", "--count", type=int, metavar="N", help="exit after N messages")
    which.add_argument(
        "-W", "--timeout", type=float, metavar="SECONDS", help="exit with code 27 after this time"
    )
    which.add_argument("-E", "--exit-subscribed", action="store_true", help="exit as soon as subscribed")

    output = parser.add_argument_group("output")
    output.add_argument("-v", "--verbose", action="store_true", help="print the topic before the payload")
    form = output.add_mutually_exclusive_group()
    form.add_argument("-F", "--format", help="print in this format, see below; overrides -v")
    form.add_argument("--json", action="store_true", help="print messages as JSON lines")
    output.add_argument("-N", "--no-newline", action="store_true", help="print no newline after each message")
    add_connection_options(parser, with_session=True)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    return run_command(PROGRAM, args, _subscribe)


async def _subscribe(args: argparse.Namespace) -> int:
    connection = CommandConnection(PROGRAM, args, reconnect=True, session=True)
    if connection.endpoint.topic is not None:
        args.topic.append(connection.endpoint.topic)
    _check_options(args, connection)
    return await SubscribeCommand(connection, args, _format(args)).run()


def _format(args: argparse.Namespace) -> Format:
    terminal = on_terminal()
    if args.format is not None:
        try:
            return compile_format(args.format, terminal)
        except ValueError as error:
            raise UsageError(f"-F: {error}.") from None
    form = json_line if args.json else topic_and_payload if args.verbose else payload_only
    return for_terminal(form) if terminal else form


def _check_options(args: argparse.Namespace, connection: CommandConnection) -> None:
    if sys.stdout is None:  # the shell's >&-
        raise UsageError("stdout is closed: messages cannot be printed.")
    if not args.topic:
        raise UsageError("no topic given: add -t, for example -t 'sensors/#'.")
    _check_filters("-t", args.topic)
    _check_filters("-T", args.filter_out)
    if not connection.is_mqtt5 and (
        args.no_local or args.retain_as_published or args.retain_handling != "always"
    ):
        raise UsageError("--no-local, --retain-as-published and --retain-handling need MQTT 5.")
    if args.no_local and any(topic.startswith("$share/") for topic in args.topic):  # [MQTT-3.8.3-4]
        raise UsageError("--no-local cannot be used with a shared subscription.")
    if args.no_retain and args.retained_only:
        raise UsageError("-R and --retained-only together exclude every message: use one.")
    if args.count is not None and args.count < 1:
        raise UsageError("-C must be at least 1.")
    if args.timeout is not None and args.timeout <= 0:
        raise UsageError("-W must be greater than 0 seconds.")
    if any(each.command == "publish" for each in args.properties):
        raise UsageError("-D publish: pyrite sub sends no PUBLISH packet.")


def _check_filters(option: str, filters: Sequence[str]) -> None:
    for each in filters:
        levels = each.split("/")
        misplaced = any("+" in level and level != "+" for level in levels)  # [MQTT-4.7.1-2]
        misplaced |= "#" in each and (each.count("#") > 1 or levels[-1] != "#")  # [MQTT-4.7.1-1]
        if misplaced:
            raise UsageError(f"{option} {each!r}: + must be a whole level, and # the whole last level.")
        if not each or len(os.fsencode(each)) > 65535:
            raise UsageError(f"{option}: a topic filter must be 1 to 65535 bytes long.")

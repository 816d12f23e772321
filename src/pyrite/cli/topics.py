"""`pyrite topics`: list topics with their retained messages; create and delete topics."""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from pyrite.cli.connection import CommandConnection, add_connection_options
from pyrite.cli.errors import run_command
from pyrite.cli.message_format import text_of
from pyrite.client import Topic
from pyrite.process.terminal import on_terminal, printable

PROGRAM = "pyrite topics"
MAX_WIDTH = 2**31 - 1

_EXAMPLES = """\
examples:
  pyrite topics                            the topic tree with its retained messages
  pyrite topics list 'weather/#' --plain   one topic per line, for scripts
  pyrite topics create weather/temp weather/wind
  pyrite topics delete weather/temp        delete the topic and its retained message
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "topics",
        help="list, create and delete topics of a running broker",
        usage="pyrite topics [options] [list | create | delete] ...",
        description="List topics that were created or have a retained message; create and delete topics.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    parser.set_defaults(run=_list, filter="#", plain=False, json=False)
    add_connection_options(parser)
    actions = parser.add_subparsers(metavar="ACTION", prog="pyrite topics")
    listing = actions.add_parser("list", help="print the topic tree (the default action)")
    listing.add_argument("filter", nargs="?", default="#", help="a topic filter (default: #)")
    how = listing.add_mutually_exclusive_group()
    how.add_argument(
        "--plain", action="store_true", help="one topic per line, a tab, and its retained payload"
    )
    how.add_argument("--json", action="store_true", help="print JSON lines")
    listing.set_defaults(run=_list)
    for name, text in (("create", "create topics"), ("delete", "delete topics and their retained messages")):
        action = actions.add_parser(name, help=text)
        action.add_argument("topic", nargs="+")
        action.set_defaults(run=_change, action=name)


def _list(args: argparse.Namespace) -> int:
    return run_command(PROGRAM, args, _show_topics)


async def _show_topics(args: argparse.Namespace) -> int:
    connection = CommandConnection(PROGRAM, args)

    async def work() -> int:
        topics = await connection.client.topics(args.filter)
        show = printable if on_terminal() else str
        if args.json:
            for topic in topics:
                kept = None if topic.kept is None else text_of(topic.kept)
                print(show(json.dumps({"topic": topic.name, "kept": kept}, ensure_ascii=False)))
        elif args.plain:
            for topic in topics:
                kept = "" if topic.kept is None else f"\t{show(text_of(topic.kept))}"
                print(f"{show(topic.name)}{kept}")
        elif topics:
            # A tree is cropped to the console's width even with soft_wrap; payloads must be shown whole.
            Console(soft_wrap=True, width=MAX_WIDTH, height=25).print(tree_of(topics))
        else:
            print("no topics", file=sys.stderr)
        return 0

    return await connection.run(work)


def tree_of(topics: list[Topic]) -> Tree:
    """Build a tree with a branch per topic level."""
    root = Tree("topics", guide_style="dim")
    branches: dict[str, Tree] = {"": root}
    kept = {topic.name: topic.kept for topic in topics}
    for topic in topics:
        above = ""
        levels = topic.name.split("/")
        for depth in range(1, len(levels) + 1):
            name = "/".join(levels[:depth])
            if name not in branches:
                label = Text(printable(levels[depth - 1]) or "(empty)")
                value = kept.get(name)
                if value is not None:
                    label.append(f" = {printable(text_of(value))}", style="green")
                branches[name] = branches[above].add(label)
            above = name
    return root


def _change(args: argparse.Namespace) -> int:
    return run_command(PROGRAM, args, _change_topics)


async def _change_topics(args: argparse.Namespace) -> int:
    connection = CommandConnection(PROGRAM, args)
    client = connection.client

    async def work() -> int:
        change = client.create_topic if args.action == "create" else client.delete_topic
        for topic in args.topic:
            await change(topic)
        return 0

    return await connection.run(work)

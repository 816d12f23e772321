"""`pyrite classic`: the programs of the five classic systems, from an installed Pyrite."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import NamedTuple

PROGRAM = "pyrite classic"


class ClassicSystem(NamedTuple):
    """A classic system: its title, and what each of its programs does."""

    title: str
    programs: dict[str, str]


SYSTEMS = {
    "message-broker": ClassicSystem(
        "Message Broker, TCP 1370",
        {"server": "the server", "client": "publish a message, or subscribe to topics"},
    ),
    "at-sign": ClassicSystem(
        "the MQTT-like broker with type@topic@contents@flag messages, TCP 8000",
        {"server_host": "the server", "client_host": "the interactive client"},
    ),
    "newsroom": ClassicSystem(
        "the newsroom, TCP 12345",
        {"server": "the server", "newsroom": "the test sequence"},
    ),
    "dallal": ClassicSystem(
        "Dallal, TCP 1373 and UDP 1234",
        {"server": "the server", "client": "publish a message, or subscribe to topics"},
    ),
    "distributed": ClassicSystem(
        "the distributed broker, TCP 5555",
        {
            "server": "the server",
            "publisher": "create and delete topics, publish messages",
            "subscriber": "pull and print the messages of a topic",
            "benchmark_createTopic": "measure topics created per second",
            "benchmark_send": "measure messages sent per second",
        },
    ),
}

_EXAMPLES = """\
examples:
  pyrite classic                                    the five systems and their programs
  pyrite classic dallal server
  pyrite classic dallal client localhost 1373 subscribe news sport
  pyrite classic dallal client localhost 1373 publish news hello
  pyrite classic distributed publisher --create my_topic
  pyrite classic distributed publisher --help       the options of a program
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "classic",
        help="run the programs of the five classic systems",
        usage=f"{PROGRAM} [SYSTEM [PROGRAM [ARGUMENT ...]]]",
        description="Run a program of one of the five classic systems. Without a program, list them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not args.words:
        return _list(SYSTEMS)
    asked_system, *words = args.words
    system = _find(asked_system, SYSTEMS)
    if system is None:
        return _unknown("system", asked_system, SYSTEMS)
    if not words:
        return _list([system])
    asked_program, *arguments = words
    programs = SYSTEMS[system].programs
    program = _find(asked_program, programs)
    if program is None:
        return _unknown(f"program of {system}", asked_program, programs)
    return _run(system, program, arguments)


def _run(system: str, program: str, arguments: list[str]) -> int:
    sys.argv = [f"{PROGRAM} {system} {program}", *arguments]  # usage and error messages show this name
    try:
        # Imported by name: pyrite.classic is in a layer above the command line, and imports it.
        module = import_module(f"pyrite.classic.{system.replace('-', '_')}.{program}")
        code: int = module.main(arguments)
    except KeyboardInterrupt:
        return 130
    except ImportError as error:
        print(f"{sys.argv[0]}: {error}", file=sys.stderr)
        return 1
    return code


def _list(systems: Iterable[str]) -> int:
    for name in systems:
        title, programs = SYSTEMS[name]
        print(f"{name}: {title}")
        for program, purpose in programs.items():
            print(f"  {f'{PROGRAM} {name} {program}':<50}{purpose}")
    return 0


def _plain(name: str) -> str:
    return name.lower().removesuffix(".py").replace("-", "_")


def _find(asked: str, names: Iterable[str]) -> str | None:
    """Return the matching name; case, `-` or `_`, and a trailing `.py` do not matter."""
    return next((name for name in names if _plain(name) == _plain(asked)), None)


def _unknown(what: str, asked: str, names: Iterable[str]) -> int:
    by_plain = {_plain(name): name for name in names}
    close = get_close_matches(_plain(asked), by_plain, n=1)
    hint = f"did you mean {by_plain[close[0]]!r}?" if close else f"expected {', '.join(by_plain.values())}"
    print(f"{PROGRAM}: no {what} {asked!r}: {hint}", file=sys.stderr)
    return 2

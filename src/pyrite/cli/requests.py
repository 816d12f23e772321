"""What `pyrite topics` and `pyrite pull` have in common: finding the broker, and saying what went wrong."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrite.client import BlockingClient

URL = "mqtt://localhost:1883"


def add_broker_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the broker is."""
    parser.add_argument(
        "-L",
        "--url",
        default=URL,
        metavar="URL",
        help=f"where the broker is: mqtt://, mqtts://, ws://, wss://, unix:///path (default: {URL})",
    )
    parser.add_argument("-u", "--username", metavar="NAME", help="who you are")
    parser.add_argument("-P", "--password", metavar="PASSWORD", help="and how the broker knows it")


def with_client(args: argparse.Namespace, name: str, work: Callable[[BlockingClient], int]) -> int:
    """Connect, do some work, and return the exit code."""
    from pyrite.client import BlockingClient, ClientError  # asyncio, which the other commands need not load

    options: dict[str, Any] = {"username": args.username, "reconnect": False}
    if args.password is not None:
        options["password"] = args.password
    try:
        with BlockingClient(args.url, **options) as client:
            return work(client)
    except (ClientError, OSError, ValueError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def text_of(payload: bytes) -> str:
    """Return a payload as people read it."""
    return payload.decode("utf-8", "backslashreplace")

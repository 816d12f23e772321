"""The server of the at-sign broker: prints each connection and each request.

server_host.py [--host HOST] [--port PORT]

A request is a line `type@topic@contents@flag`; the types, in either case, are connect, publish, subscribe,
list and disconnect. Each is translated into the line protocol, and what that answers is translated back.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # started or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

import argparse
import asyncio
import signal
from collections.abc import Sequence

from pyrite.broker.catalog import TopicOptions
from pyrite.broker.link import Transport
from pyrite.classic.translating import TranslatingConnection
from pyrite.protocols.conversation import Conversation
from pyrite.protocols.line import frames
from pyrite.protocols.line.frames import Line
from pyrite.server.config import Config
from pyrite.server.listeners import Listener
from pyrite.server.server import Server

TOPICS = ["weather", "news", "health", "security"]


class AtSignConnection(TranslatingConnection):
    """One client."""

    __slots__ = ()

    def request(self, line: bytes) -> None:
        """Print a request, and do what it asks for."""
        print(f"{self.peer}: {line.decode('utf-8', 'replace').rstrip()}", flush=True)
        kind, *rest = line.split(b"@")
        match kind.strip().lower().decode("ascii", "replace"), rest:
            case "connect", _:
                self.tell(b"CONNACK")
            case "publish", [topic, contents, *flags] if [flag.lower() for flag in flags] in (
                [],
                [b""],
                [b"retain"],
            ):
                retain = bool(flags) and flags[0] != b""
                self.ask(frames.frame("Publish", topic, payload=contents, retain=retain))
            case "subscribe", [topic, *_]:
                self.ask(frames.line("Subscribe", _filter(topic)))
            case "list", _:
                self.ask(frames.line("List"))
            case "disconnect", _:
                self.part(b"DISCONNACK")
            case _:
                self.tell(
                    b"ERROR@expected type@topic@contents@flag: connect, publish, subscribe, list, disconnect"
                )

    def answer(self, line: Line, payload: bytes) -> None:
        """Tell the client what the line protocol says."""
        match line.command:
            case "PubAck" | "SubAck":
                self.tell(line.command.upper().encode())
            case "Message":
                topic = frames.unescape(line.words[0])
                self.tell(b"PUBLISH@" + topic + b"@" + payload.replace(b"\n", b" "))
            case "List":
                self.tell(b"LIST\n" + _tree(payload))
            case "Error":
                self.tell(b"ERROR@" + b" ".join(line.words[1:]))


def _filter(topic: bytes) -> bytes:
    """Return a filter as the broker knows it: a * at the end is for all below, within for one level."""
    levels = [b"+" if level == b"*" else level for level in topic.split(b"/")]
    if levels[-1] == b"+":
        levels[-1] = b"#"
    return b"/".join(levels)


def _tree(rows: bytes) -> bytes:
    """Write topics, each below the one that it belongs to, with their kept values."""
    kept: dict[tuple[bytes, ...], bytes | None] = {}
    for row in rows.splitlines():
        name, space, word = row.partition(b" ")
        levels = tuple(frames.unescape(name).split(b"/"))
        for depth in range(1, len(levels)):
            kept.setdefault(levels[:depth], None)
        kept[levels] = frames.unescape(word) if space else None
    lines = []
    for levels in sorted(kept):
        value = kept[levels]
        lines.append(b"  " * (len(levels) - 1) + levels[-1] + (b"" if value is None else b" = " + value))
    return b"\n".join(lines)


class AtSignServer(Server):
    """A broker whose clients send at-sign lines."""

    def connection(self, listener: Listener, transport: Transport, address: str, peer: str) -> Conversation:
        """Make the connection of a client, and print that it came."""
        print(f"{peer}: connected", flush=True)
        return AtSignConnection(self.broker, transport, address, peer)


async def run(host: str, port: int) -> None:
    """Serve until Ctrl-C."""
    config = Config(listen=[f"line://{host}:{port}"], ephemeral=True, topics=TopicOptions(names=TOPICS))
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = AtSignServer(config)
    for listener in await server.start():
        print(f"listening on {listener.host}:{listener.port}", flush=True)
    await stopped.wait()
    await server.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="server_host.py", description="the server of the at-sign broker")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="(default: 8000)")
    asked = parser.parse_args(arguments)
    try:
        asyncio.run(run(asked.host, asked.port))
    except OSError as error:
        print(f"server_host.py: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

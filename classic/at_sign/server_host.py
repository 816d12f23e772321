"""The server of the at-sign broker: prints each connection and each request.

server_host.py [--host HOST] [--port PORT]

A request is a line `type@topic@contents@flag`; the types, in either case, are connect, publish, subscribe,
list and disconnect. Each is translated into the line protocol, and what that answers is translated back.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from classic import common  # noqa: F401
from pyrite.broker.catalog import TopicOptions
from pyrite.broker.core import Broker
from pyrite.broker.link import Transport
from pyrite.protocols.conversation import Conversation
from pyrite.protocols.line import frames
from pyrite.protocols.line.connection import LineConnection
from pyrite.protocols.line.options import LineOptions
from pyrite.server.config import Config
from pyrite.server.listeners import Listener
from pyrite.server.server import Server

TOPICS = ["weather", "news", "health", "security"]
MAX_LINE = 1024 * 1024
NO_PINGS = LineOptions(ping_interval=10 * 365 * 86_400.0)


class AtSignConnection(LineConnection):
    """One client."""

    __slots__ = ("_rest",)

    def __init__(
        self, broker: Broker, options: LineOptions, transport: Transport, address: str, peer: str = ""
    ) -> None:
        super().__init__(broker, options, transport, address, peer)
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take lines, print them, and do what they ask for."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            self.fail("too-long", f"a line has at most {MAX_LINE} bytes")
            return
        for line in lines:
            if line.strip():
                print(f"{self.peer}: {line.decode('utf-8', 'replace').rstrip()}", flush=True)
                self._request(line.rstrip(b"\r"))
        if not data:
            super().feed(b"")

    def _request(self, line: bytes) -> None:
        kind, *rest = line.split(b"@")
        match kind.strip().lower().decode("ascii", "replace"), rest:
            case "connect", _:
                self._say(b"CONNACK")
            case "publish", [topic, contents, *flags] if [flag.lower() for flag in flags] in (
                [],
                [b""],
                [b"retain"],
            ):
                retain = bool(flags) and flags[0] != b""
                super().feed(frames.frame("Publish", topic, payload=contents, retain=retain))
            case "subscribe", [topic, *_]:
                super().feed(frames.line("Subscribe", _filter(topic)))
            case "list", _:
                super().feed(frames.line("List"))
            case "disconnect", _:
                self._say(b"DISCONNACK")
                self.leave(send_will=False)
                self.close()
            case _:
                self._say(
                    b"ERROR@expected type@topic@contents@flag: connect, publish, subscribe, list, disconnect"
                )

    def _say(self, line: bytes) -> None:
        super().write(line + b"\n")

    def write(self, data: bytes | bytearray) -> None:
        """Translate what the line protocol says."""
        for frame in frames.frames_in(bytes(data)):
            head, _, payload = frame.partition(b"\n")
            line = frames.parse(head)
            match line.command:
                case "PubAck" | "SubAck":
                    self._say(line.command.upper().encode())
                case "Message":
                    topic = frames.unescape(line.words[0])
                    self._say(b"PUBLISH@" + topic + b"@" + payload[:-1].replace(b"\n", b" "))
                case "List":
                    self._say(b"LIST\n" + _tree(payload[:-1]))
                case "Error":
                    self._say(b"ERROR@" + b" ".join(line.words[1:]))


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
        return AtSignConnection(self.broker, NO_PINGS, transport, address, peer)


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

"""The line protocol beside MQTT, QoS 0, from one publisher to one subscriber: python -m benchmarks.line

Both are measured with the same generator, of Python, which sends prepared blocks and counts bytes.
"""

from __future__ import annotations

import argparse
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

TOPIC = b"bench/topic/0"
PAYLOAD = b"Z" * 64
BLOCK = 512 * 1024
UNDER_WAY = 4 * 1024 * 1024
"""Bytes sent and not received, at most."""


class Speech(NamedTuple):
    """How to subscribe and publish in a protocol, and how large a message is that comes."""

    hello: bytes
    subscribe: bytes
    answers: int
    """Bytes of the answers to both."""
    message: bytes
    received: int


def _mqtt_packet(kind: int, body: bytes) -> bytes:
    return bytes([kind, len(body)]) + body


def _mqtt() -> Speech:
    name = len(TOPIC).to_bytes(2, "big") + TOPIC
    hello = _mqtt_packet(0x10, b"\0\4MQTT\4\2\0\0\0\0")
    message = _mqtt_packet(0x30, name + PAYLOAD)
    return Speech(hello, _mqtt_packet(0x82, b"\0\1" + name + b"\0"), 4 + 5, message, len(message))


def _line() -> Speech:
    subscribe, suback = b"Subscribe %s\n" % TOPIC, b"SubAck %s\n" % TOPIC
    message = b"Publish %s %d noack\n%s\n" % (TOPIC, len(PAYLOAD), PAYLOAD)
    received = b"Message %s %d noack\n%s\n" % (TOPIC, len(PAYLOAD), PAYLOAD)
    return Speech(b"", subscribe, len(suback), message, len(received))


SPEECHES = {"mqtt": _mqtt(), "line": _line()}


def _read(connected: socket.socket, count: int) -> None:
    while count:
        count -= len(connected.recv(count))


def measure(port: int, speech: Speech, seconds: float) -> float:
    """Return how many messages a second come through."""
    reader = socket.create_connection(("127.0.0.1", port))
    writer = socket.create_connection(("127.0.0.1", port))
    reader.sendall(speech.hello + speech.subscribe)
    _read(reader, speech.answers)
    if speech.hello:
        writer.sendall(speech.hello)
        _read(writer, 4)
    block = speech.message * (BLOCK // len(speech.message))
    room = threading.Semaphore(UNDER_WAY // len(block))
    over = threading.Event()

    def write() -> None:
        try:
            while not over.is_set():
                room.acquire()
                writer.sendall(block)
        except OSError:
            pass  # the measurement is over

    sender = threading.Thread(target=write, daemon=True)
    sender.start()
    buffer = bytearray(BLOCK)
    came = whole = counted = 0
    each = speech.received * (len(block) // len(speech.message))
    began = time.perf_counter() + 0.5
    while (now := time.perf_counter()) < began + seconds:
        size = reader.recv_into(buffer)
        came += size
        if now >= began:
            counted += size
        while came - whole >= each:
            whole += each
            room.release()
    over.set()
    room.release()
    reader.close()
    writer.close()
    return counted / speech.received / seconds


def main() -> int:
    """Measure both in turns, and show the medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.line", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(args.runs):
        for how in ("--ephemeral", "log"):
            for scheme, speech in SPEECHES.items():
                with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
                    where = ["--ephemeral"] if how == "--ephemeral" else ["--data", folder]
                    command = [
                        sys.executable,
                        "-m",
                        "pyrite",
                        "serve",
                        *where,
                        "--listen",
                        f"{scheme}://127.0.0.1:0",
                    ]
                    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
                        assert broker.stdout is not None
                        port = 0
                        for said in broker.stdout:
                            match = re.search(r"127\.0\.0\.1:(\d+)", said)
                            port = int(match[1]) if match else port
                            if said == "pyrite ready\n":
                                break
                        found.setdefault((how, scheme), []).append(measure(port, speech, args.seconds))
                        broker.terminate()
    table = Table(title="64-byte messages, 1 publisher, 1 subscriber, QoS 0")
    for column in ("broker", "mqtt", "line", "line / mqtt"):
        table.add_column(column, justify="right")
    for how in ("--ephemeral", "log"):
        mqtt, line = (statistics.median(found[how, scheme]) for scheme in ("mqtt", "line"))
        table.add_row(how, f"{mqtt:,.0f}/s", f"{line:,.0f}/s", f"{line / mqtt:.2f}x")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

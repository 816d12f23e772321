"""A crowd of clients in a process of its own: opens connections until something stops it, and holds them.

    python -m studies.crowd HOST PORT COUNT SECONDS SOURCE...

A client counts when its Ping was answered: then it is one of the broker, and not only in the kernel's queue.
What stopped it is printed as one line of JSON; the connections last until standard input ends.
"""

from __future__ import annotations

import errno
import json
import socket
import sys
import time

BATCH = 100
"""Connections that are opened before their answers are waited for."""
PATIENCE = 4.0
"""Seconds that an answer may take."""


class Stopped(Exception):
    """Something refused one more connection; the message says what."""


def connect(host: str, port: int, source: str) -> socket.socket:
    """Open one connection and send a Ping."""
    try:
        connected = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise Stopped(_name(error, "socket")) from None
    try:
        connected.settimeout(PATIENCE)
        if source:
            # The port is chosen when it is known where to, so that the same may be used to other places.
            connected.setsockopt(socket.IPPROTO_IP, _NO_PORT, 1)
            connected.bind((source, 0))
        connected.connect((host, port))
        connected.sendall(b"Ping\n")
    except OSError as error:
        connected.close()
        raise Stopped(_name(error, "connect")) from None
    return connected


_NO_PORT = 24
"""IP_BIND_ADDRESS_NO_PORT."""


def _name(error: OSError, where: str) -> str:
    if isinstance(error, TimeoutError):
        return f"{where}: no answer"
    return f"{where}: {errno.errorcode.get(error.errno or 0, str(error))}"


def answered(connected: socket.socket) -> None:
    """Return when the Ping was answered."""
    try:
        answer = connected.recv(64)
    except OSError as error:
        raise Stopped(_name(error, "answer")) from None
    if not answer:
        raise Stopped("answer: closed")
    if not answer.startswith(b"Pong"):
        raise Stopped(f"answer: {answer!r}")


def gather(
    host: str, port: int, count: int, seconds: float, sources: list[str]
) -> tuple[list[socket.socket], str]:
    """Open up to `count` connections; return those that are clients, and what stopped the rest, if any."""
    clients: list[socket.socket] = []
    deadline = time.monotonic() + seconds
    while len(clients) < count:
        if time.monotonic() > deadline:
            return clients, "time"
        opened: list[socket.socket] = []
        why = ""
        for number in range(min(BATCH, count - len(clients))):
            try:
                opened.append(connect(host, port, sources[number % len(sources)]))
            except Stopped as stopped:
                why = str(stopped)
                break
        for connected in opened:
            try:
                answered(connected)
            except Stopped as stopped:
                why = str(stopped) if not why or why.startswith("connect: no") else why
                break
            clients.append(connected)
        if why:
            for connected in opened:
                if connected not in clients[-BATCH:]:
                    connected.close()
            return clients, why
    return clients, ""


def main() -> None:
    """Gather, say how it went, and wait."""
    host, port, count, seconds, *sources = sys.argv[1:]
    began = time.monotonic()
    clients, why = gather(host, int(port), int(count), float(seconds), sources or [""])
    took = time.monotonic() - began
    print(json.dumps({"clients": len(clients), "stopped_by": why, "seconds": took}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

"""The interactive client of the at-sign broker. What the server sends never garbles the line being typed.

client_host.py [--host HOST] [--port PORT]
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # started or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

import argparse
import socket
import threading
from collections.abc import Sequence

from prompt_toolkit import PromptSession
from prompt_toolkit.patch_stdout import patch_stdout

PROMPT = "enter with format <type@topic@contents@flag>: "


def _receive(connected: socket.socket, over: threading.Event) -> None:
    """Print what the server sends, above the line being typed."""
    with connected.makefile(encoding="utf-8", errors="replace") as lines:
        try:
            for line in lines:
                print(line.rstrip("\n"), flush=True)
        except OSError:
            pass  # it was closed here
    over.set()
    print("the server has ended the connection; Enter ends this program", flush=True)


def talk(connected: socket.socket) -> int:
    """Send what is typed, until `disconnect`, the end of the input, or the end of the connection."""
    over = threading.Event()
    session: PromptSession[str] = PromptSession()
    with patch_stdout():
        threading.Thread(target=_receive, args=(connected, over), daemon=True).start()
        while not over.is_set():
            try:
                line = session.prompt(PROMPT)
            except (EOFError, KeyboardInterrupt):
                line = "disconnect"
            if over.is_set():
                break
            if line.strip():
                connected.sendall(line.encode() + b"\n")
            if line.strip().lower() == "disconnect":
                over.wait(10)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="client_host.py", description="the client of the at-sign broker")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    asked = parser.parse_args(arguments)
    try:
        with socket.create_connection((asked.host, asked.port), timeout=10) as connected:
            connected.settimeout(None)
            return talk(connected)
    except OSError as error:
        print(f"client_host.py: {error.strerror or error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""The interactive client of the at-sign broker. Pushed messages never garble the line being typed.

client_host.py [--host HOST] [--port PORT]
"""

import sys
from pathlib import Path

if not __name__.startswith("pyrite."):  # run or imported as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from pyrite.classic import bootstrap

bootstrap.find_dependencies(__name__)

import argparse
import re
import select
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

from pyrite.classic import common

PROMPT = "enter with format <type@topic@contents@flag>: "
TIMEOUT = 10.0
"""Timeout for connecting and for answers, in seconds."""
READ_SIZE = 65_536
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Connections:
    """The three connections: two for requests, used alternately, and one for pushes."""

    def __init__(self, host: str, port: int) -> None:
        with ExitStack() as opened:

            def connect(first_line: str) -> tuple[socket.socket, str]:
                connected = opened.enter_context(socket.create_connection((host, port), timeout=TIMEOUT))
                connected.sendall(first_line.encode() + b"\n")
                answer = b""
                while not answer.endswith(b"\n"):
                    piece = connected.recv(1)  # and no bytes of the following push
                    if not piece:
                        raise ConnectionError("it is not an at-sign server")
                    answer += piece
                return connected, answer[:-1].decode("utf-8", "replace")

            first, answer = connect("client")
            word, _, key = answer.partition("@")
            if word != "client":
                raise ConnectionError("it is not an at-sign server")
            second, _ = connect(f"alternatively@{key}")
            self._pushes, _ = connect(f"pushes@{key}")
            self._turns = [(first, first.makefile("rb")), (second, second.makefile("rb"))]
            self._answers = self._turns[0][1]
            self._showing = threading.Lock()
            self._rest = b""
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Close all three connections."""
        self._opened.close()

    def ask(self, request: str) -> None:
        """Send a request and print its answer, after everything pushed before it."""
        (connected, self._answers), *others = self._turns
        self._turns = [*others, (connected, self._answers)]
        with self._showing:  # pushes caused by the request are shown after its answer
            connected.sendall(request.encode("utf-8", "surrogateescape") + b"\n")
            print("client message sent", flush=True)
        answer = self._line()
        self._show_what_came()
        print(f"server: {printable(answer)}", flush=True)
        if answer == "LIST":
            print(printable(self._line()), flush=True)

    def _line(self) -> str:
        line = self._answers.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the server has ended the connection")
        return line[:-1].decode("utf-8", "replace")

    def show_pushes(self, ended: Callable[[], object]) -> None:
        """Print pushed messages until the connection ends."""
        try:
            while self._show_what_came():
                select.select([self._pushes], [], [])
        except (OSError, ValueError):
            pass  # closed by this client
        ended()

    def _show_what_came(self) -> bool:
        """Print the messages pushed so far; returns False at the end of the connection."""
        with self._showing:
            while select.select([self._pushes], [], [], 0)[0]:
                data = self._pushes.recv(READ_SIZE)
                if not data:
                    return False
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    print(printable(line.decode("utf-8", "replace")), flush=True)
        return True


def printable(text: str) -> str:
    """Remove characters that would move the cursor or change the screen."""
    return _CONTROL.sub("?", text)


def talk(connections: Connections) -> int:
    """Send typed requests until `disconnect`, the end of input, or the end of the connection."""
    code = 0
    over = threading.Event()
    shown, ask, wake = _prompt()

    def ended() -> None:
        over.set()
        wake()

    with shown:
        threading.Thread(target=connections.show_pushes, args=(ended,), daemon=True).start()
        while not over.is_set():
            try:
                line = ask()
            except EOFError:
                line = "disconnect"
            except KeyboardInterrupt:
                line, code = "disconnect", common.stopped(common.INTERRUPTED)
            if over.is_set():
                break
            if line.strip():
                connections.ask(line)
            if line.strip().lower().partition("@")[0] == "disconnect":
                return code
    raise ConnectionError("the server has ended the connection")


def _prompt() -> tuple[AbstractContextManager[object], Callable[[], str], Callable[[], object]]:
    """Return functions to print in the output context, to prompt, and to cancel the prompt from another
    thread.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return nullcontext(), lambda: input(PROMPT), lambda: None
    from prompt_toolkit import PromptSession
    from prompt_toolkit.patch_stdout import patch_stdout

    session: PromptSession[str] = PromptSession()

    def wake() -> None:
        loop = session.app.loop
        if loop is not None:
            loop.call_soon_threadsafe(lambda: session.app.is_running and session.app.exit(exception=EOFError))

    return patch_stdout(), lambda: session.prompt(PROMPT), wake


@common.program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog=common.name(), description="the client of the at-sign broker")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=common.port, default=8000)
    asked = parser.parse_args(arguments)
    sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    try:
        connections = Connections(asked.host, asked.port)
    except OSError as error:
        where = f"{asked.host}:{asked.port}"
        raise ConnectionError(f"cannot connect to {where}: {error.strerror or error}") from None
    try:
        return talk(connections)
    finally:
        connections.close()


if __name__ == "__main__":
    sys.exit(main())

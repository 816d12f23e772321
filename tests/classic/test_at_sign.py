"""The at-sign broker: its lines, what the server prints, and a prompt that stays whole."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pyte
import pytest

from tests.classic.programs import CLASSIC, Program

PROMPT = "enter with format <type@topic@contents@flag>: "


class Server:
    """The server, and what it has printed."""

    def __init__(self) -> None:
        self.program = Program(str(CLASSIC / "at_sign/server_host.py"), "--port", "0")
        said = self.program.line()
        assert re.fullmatch(r"listening on 127\.0\.0\.1:\d+\n", said)
        self.port = int(said.rpartition(":")[2])

    def dial(self) -> socket.socket:
        """Connect, and see that it is printed."""
        connected = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        assert self.program.line() == f"127.0.0.1:{connected.getsockname()[1]}: connected\n"
        return connected


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    code, _, errors = started.program.end(signal.SIGINT)
    assert (code, errors) == (0, "")


def ask(connected: socket.socket, request: str, answer: str) -> None:
    connected.sendall(request.encode() + b"\n")
    expect(connected, answer)


def expect(connected: socket.socket, answer: str) -> None:
    data = b""
    while len(data) < len(answer.encode()):
        piece = connected.recv(len(answer.encode()) - len(data))
        assert piece, data
        data += piece
    assert data.decode() == answer


def test_the_requests(server: Server) -> None:
    with server.dial() as one, server.dial() as two:
        name = f"127.0.0.1:{one.getsockname()[1]}"
        ask(one, "connect", "CONNACK\n")
        assert server.program.line() == f"{name}: connect\n"
        ask(one, "SUBSCRIBE@weather/*", "SUBACK\n")
        assert server.program.line() == f"{name}: SUBSCRIBE@weather/*\n"
        ask(two, "publish@weather/temp@97", "PUBACK\n")
        expect(one, "PUBLISH@weather/temp@97\n")
        ask(two, "Publish@weather/temp@98@retain", "PUBACK\n")
        expect(one, "PUBLISH@weather/temp@98\n")
        ask(two, "subscribe@weather/*", "SUBACK\nPUBLISH@weather/temp@98\n")
        tree = "LIST\nhealth\nnews\nsecurity\nweather\n  temp = 98\n"
        ask(one, "list", tree)
        ask(one, "disconnect", "DISCONNACK\n")
        assert one.recv(1) == b""
        ask(two, "publish@weather/temp@", "PUBLISH@weather/temp@\nPUBACK\n")


@pytest.mark.parametrize(
    "wrong", ["dance", "publish", "publish@news", "publish@a@b@c", "publish@a@b@retain@d", "@"]
)
def test_what_is_wrong_is_told(server: Server, wrong: str) -> None:
    with server.dial() as one:
        one.sendall(wrong.encode() + b"\n")
        expect(one, "ERROR@expected type@topic@contents@flag")
        ask(one, "", ": connect, publish, subscribe, list, disconnect\n")
        ask(one, "subscribe@a#b", "ERROR@Subscribe: '#' stands alone, in the last level\n")
        ask(one, "connect", "CONNACK\n")


def test_lines_in_pieces(server: Server) -> None:
    with server.dial() as one:
        for piece in (b"conn", b"ect\r", b"\nlist"):
            one.sendall(piece)
            time.sleep(0.05)
        expect(one, "CONNACK\n")
        ask(one, "", "LIST\nhealth\nnews\nsecurity\nweather\n")


class Terminal:
    """A program in a terminal of 100 columns, and what is on its screen."""

    def __init__(self, *arguments: str) -> None:
        self._screen = pyte.Screen(100, 30)
        self._stream = pyte.ByteStream(self._screen)
        self._end, inner = pty.openpty()
        environment = os.environ | {
            "TERM": "xterm",
            "COLUMNS": "100",
            "LINES": "30",
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=environment,
            close_fds=True,
        )
        os.close(inner)

    def type(self, text: str) -> None:
        """Type on the keyboard."""
        os.write(self._end, text.encode())

    def lines(self) -> list[str]:
        """Return the lines on the screen."""
        return [line.rstrip() for line in self._screen.display if line.strip()]

    def wait_for(self, *expected: str) -> None:
        """Wait until the screen ends with these lines."""
        until = time.monotonic() + 20
        while self.lines()[-len(expected) :] != [line.rstrip() for line in expected]:
            assert time.monotonic() < until, "\n".join(self.lines())
            if select.select([self._end], [], [], 0.1)[0]:
                try:
                    self._stream.feed(os.read(self._end, 65_536))
                except OSError:
                    break

    def close(self) -> int:
        """Wait for the end of the program."""
        until = time.monotonic() + 20
        while self.process.poll() is None and time.monotonic() < until:
            if select.select([self._end], [], [], 0.1)[0]:
                try:
                    self._stream.feed(os.read(self._end, 65_536))
                except OSError:
                    break
        code = self.process.wait(10)
        os.close(self._end)
        return code


def test_a_pushed_message_does_not_garble_what_is_being_typed(server: Server) -> None:
    terminal = Terminal(str(CLASSIC / "at_sign/client_host.py"), "--port", str(server.port))
    try:
        terminal.wait_for(PROMPT)
        terminal.type("subscribe@news\r")
        terminal.wait_for("SUBACK", PROMPT)
        terminal.type("publish@news@hal")
        terminal.wait_for(PROMPT + "publish@news@hal")
        server.program.line()  # connected
        server.program.line()  # subscribe
        with server.dial() as other:
            ask(other, "publish@news@flash", "PUBACK\n")
            terminal.wait_for("PUBLISH@news@flash", PROMPT + "publish@news@hal")
        terminal.type("f done\r")
        terminal.wait_for("PUBLISH@news@half done", "PUBACK", PROMPT)
        terminal.type("disconnect\r")
        assert terminal.close() == 0
    finally:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()


def test_no_server() -> None:
    done = subprocess.run(
        [sys.executable, str(CLASSIC / "at_sign/client_host.py"), "--port", "1"],
        capture_output=True,
        text=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    assert done.stderr == "client_host.py: Connection refused\n"

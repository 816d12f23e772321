"""The at-sign broker: the example of its page, line by line, and robustness."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty

import pyte
import pytest

from tests.classic.line_programs import dial_when_open
from tests.classic.programs import CLASSIC, Program
from tests.support.waiting import let_pass

PROMPT = "enter with format <type@topic@contents@flag>: "
DATABASE = (
    "{'weather': [{'temp': [{}, '98'], 'forecast': [{}, 'cloudy']}, ''], "
    "'news': [{}, ''], 'health': [{}, ''], 'security': [{}, '']}"
)
EMPTY = "{'weather': [{}, ''], 'news': [{}, ''], 'health': [{}, ''], 'security': [{}, '']}"
ADDRESS = re.compile(r"\('127\.0\.0\.1', \d+\)")


class Server:
    """The server and its output so far."""

    def __init__(self) -> None:
        self.program = Program(str(CLASSIC / "at_sign/server_host.py"), "--port", "0")
        said = self.program.line()
        assert re.fullmatch(r"listening on 127\.0\.0\.1:\d+\n", said)
        self.port = int(said.rpartition(":")[2])

    def dial(self) -> socket.socket:
        """Connect to the server."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def lines(self, *expected: str) -> None:
        """Assert the next lines of its output, apart from addresses."""
        for line in expected:
            assert ADDRESS.sub("ADDRESS", self.program.line()) == line + "\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A shared server, for tests that tolerate other tests' messages."""
    started = Server()
    yield started
    assert started.program.end(signal.SIGINT)[0] == 0


@pytest.fixture
def fresh() -> Iterator[Server]:
    """A server that no test has used yet."""
    started = Server()
    yield started
    code, _, errors = started.program.end(signal.SIGINT)
    assert (code, errors) == (0, "stopped\n")


class Terminal:
    """A program in a terminal of 200 columns, and its screen."""

    def __init__(self, *arguments: str) -> None:
        self._screen = pyte.Screen(200, 40)
        self._stream = pyte.ByteStream(self._screen)
        self._end, inner = pty.openpty()
        termios.tcsetwinsize(inner, (40, 200))
        environment = os.environ | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
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
        """Type text."""
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
        """Wait for the end of the program; returns its exit code."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if select.select([self._end], [], [], 0.1)[0]:
                try:
                    self._stream.feed(os.read(self._end, 65_536))
                except OSError:  # the terminal is closed and everything is read
                    break
        code = self.process.wait(10)
        os.close(self._end)
        return code


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


@pytest.fixture
def terminal() -> Iterator[Callable[[Server], Terminal]]:
    opened: list[Terminal] = []

    def make(server: Server) -> Terminal:
        opened.append(Terminal(str(CLASSIC / "at_sign/client_host.py"), "--port", str(server.port)))
        opened[-1].wait_for(PROMPT)
        return opened[-1]

    yield make
    for one in opened:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_the_example_of_the_page_runs_line_by_line(
    fresh: Server, terminal: Callable[[Server], Terminal]
) -> None:
    one = terminal(fresh)
    fresh.lines("Connected by ADDRESS", "alternatively,  ADDRESS")
    two = terminal(fresh)
    fresh.lines("Connected by ADDRESS", "alternatively,  ADDRESS")
    one.type("connect\r")
    one.wait_for(PROMPT + "connect", "client message sent", "server: CONNACK", PROMPT)
    fresh.lines("client:  ['CONNECT']")
    one.type("publish@weather/temp@98@retain\r")
    one.wait_for("client message sent", "98", "server: PUBACK", PROMPT)
    fresh.lines(
        "client:  ['PUBLISH', 'weather/temp', '98', 'retain']",
        "current subs: {'weather': [{'temp': [{}, 0]}, 0]}",
    )
    two.type("connect\r")
    two.wait_for("client message sent", "server: CONNACK", PROMPT)
    fresh.lines("client:  ['CONNECT']")
    two.type("subscribe@weather/*\r")
    two.wait_for("client message sent", "98", "server: SUBACK", PROMPT)
    fresh.lines("client:  ['SUBSCRIBE', 'weather/*']", "current subs: {'weather': [{'*': [{}, 0]}, 0]}")
    one.type("publish@weather/forecast@cloudy@retain\r")
    one.wait_for("client message sent", "cloudy", "server: PUBACK", PROMPT)
    fresh.lines(
        "client:  ['PUBLISH', 'weather/forecast', 'cloudy', 'retain']",
        "current subs: {'weather': [{'temp': [{}, 0], 'forecast': [{}, 0]}, 0]}",
    )
    one.type("list\r")
    one.wait_for("server: LIST", DATABASE, PROMPT)
    fresh.lines("client:  ['LIST']", DATABASE, DATABASE)
    two.wait_for("cloudy", PROMPT)
    assert one.lines() == [
        line.rstrip()
        for line in (
            PROMPT + "connect",
            "client message sent",
            "server: CONNACK",
            PROMPT + "publish@weather/temp@98@retain",
            "client message sent",
            "98",
            "server: PUBACK",
            PROMPT + "publish@weather/forecast@cloudy@retain",
            "client message sent",
            "cloudy",
            "server: PUBACK",
            PROMPT + "list",
            "client message sent",
            "server: LIST",
            DATABASE,
            PROMPT,
        )
    ]
    assert two.lines() == [
        line.rstrip()
        for line in (
            PROMPT + "connect",
            "client message sent",
            "server: CONNACK",
            PROMPT + "subscribe@weather/*",
            "client message sent",
            "98",
            "server: SUBACK",
            "cloudy",
            PROMPT,
        )
    ]


def test_a_pushed_message_does_not_garble_the_line_being_typed(
    server: Server, terminal: Callable[[Server], Terminal]
) -> None:
    one = terminal(server)
    one.type("subscribe@u0\r")
    one.wait_for("server: SUBACK", PROMPT)
    one.type("publish@u0@hal")
    one.wait_for(PROMPT + "publish@u0@hal")
    with server.dial() as other:
        ask(other, "publish@u0@flash\r\x1b[2J", "flash\r\x1b[2J\nPUBACK\n")
        one.wait_for("flash??[2J", PROMPT + "publish@u0@hal")
    one.type("f done\r")
    one.wait_for("client message sent", "half done", "server: PUBACK", PROMPT)
    one.type("disconnect\r")
    assert one.close() == 0
    assert one.lines()[-2:] == ["client message sent", "server: DISCONNACK"]


def three(server: Server) -> tuple[socket.socket, socket.socket, socket.socket]:
    """Open the three connections of a client."""
    first, second, third = server.dial(), server.dial(), server.dial()
    first.sendall(b"client\n")
    key = first.makefile("rb").readline().removeprefix(b"client@")
    second.sendall(b"alternatively@" + key)
    third.sendall(b"pushes@" + key)
    expect(second, "alternatively\n")
    expect(third, "pushes\n")
    return first, second, third


def test_two_connections_carry_requests_and_the_third_carries_pushes(fresh: Server) -> None:
    first, second, third = three(fresh)
    with first, second, third, fresh.dial() as other:
        ask(first, "connect", "CONNACK\n")
        ask(second, "Subscribe@news/*", "SUBACK\n")
        ask(other, "publish@news/today@hello", "hello\nPUBACK\n")
        expect(third, "hello\n")
        ask(first, "LIST", "LIST\n" + EMPTY.replace("'news': [{}", "'news': [{'today': [{}, '']}") + "\n")
        ask(second, "DISCONNECT", "DISCONNACK\n")
        for one in (first, second, third):
            assert one.recv(1) == b""


def test_pushed_messages_come_before_the_answer(server: Server) -> None:
    first, second, third = three(server)
    with first, second, third:
        ask(first, "connect\npublish@before@1", "CONNACK\nPUBACK\n")
        assert select.select([third], [], [], 0)[0] == [third]
        expect(third, "1\n")


def test_a_disconnected_client_has_no_connection_left(server: Server) -> None:
    first, second, third = three(server)
    with first, second, third:
        ask(first, "connect", "CONNACK\n")
        second.close()
        assert (first.recv(1), third.recv(1)) == (b"", b"")


def test_clients_that_connect_at_the_same_time_are_kept_apart(server: Server) -> None:
    with server.dial(), server.dial() as stranger:  # these two print nothing
        first, second, third = three(server)
        with first, second, third:
            ask(first, "subscribe@u1", "SUBACK\n")
            ask(stranger, "publish@u1@1", "1\nPUBACK\n")
            expect(third, "1\n")
        with server.dial() as liar:
            ask(liar, "pushes@0123", "ERROR@there is no such client\n")
            assert liar.recv(1) == b""


def test_requests_may_be_in_either_case_and_omit_optional_fields(fresh: Server) -> None:
    with fresh.dial() as one:
        ask(one, "connect", "CONNACK\n")
        ask(one, "CONNECT", "CONNACK\n")
        ask(one, "Connect@@@", "CONNACK\n")
        fresh.lines("Connected by ADDRESS", "client:  ['CONNECT']", "client:  ['CONNECT']")
        fresh.lines("client:  ['CONNECT', '', '', '']")
        ask(one, "publish@news@not kept", "not kept\nPUBACK\n")
        ask(one, "publish@news@not kept@", "not kept\nPUBACK\n")
        ask(one, "list", f"LIST\n{EMPTY}\n")
        ask(one, "publish@news@kept@retain", "kept\nPUBACK\n")
        ask(one, "subscribe@news", "kept\nSUBACK\n")
        ask(one, "list", "LIST\n" + EMPTY.replace("'news': [{}, ''", "'news': [{}, 'kept'") + "\n")
        ask(one, "DISCONNECT", "DISCONNACK\n")
        assert one.recv(1) == b""


def test_a_client_receives_only_messages_it_subscribed_to(server: Server) -> None:
    with server.dial() as publisher, server.dial() as one, server.dial() as two, server.dial() as three:
        ask(one, "subscribe@a/*/c", "SUBACK\n")
        ask(two, "subscribe@a/*", "SUBACK\n")
        ask(three, "subscribe@a/b/c", "SUBACK\n")
        for topic in ("a", "a/b", "a/b/c", "a/b/c/d", "a/x/c", "b"):
            ask(publisher, f"publish@{topic}@{topic}", f"{topic}\nPUBACK\n")
        for client in (one, two, three):
            client.sendall(b"connect\n")
        expect(one, "a/b/c\na/x/c\nCONNACK\n")
        expect(two, "a/b\na/b/c\na/b/c/d\na/x/c\nCONNACK\n")
        expect(three, "a/b/c\nCONNACK\n")


def test_a_publisher_receives_what_others_publish_on_its_topic(server: Server) -> None:
    with server.dial() as one, server.dial() as two:
        ask(one, "publish@t0@1", "1\nPUBACK\n")
        ask(two, "publish@t0@2", "2\nPUBACK\n")
        expect(one, "2\n")


@pytest.mark.parametrize(
    "wrong", ["dance", "publish", "publish@news", "publish@a@b@c", "publish@a@b@retain@d", "@"]
)
def test_wrong_requests_are_answered_with_an_error(server: Server, wrong: str) -> None:
    with server.dial() as one:
        expected = "expected type@topic@contents@flag: connect, publish, subscribe, list, disconnect"
        ask(one, wrong, f"ERROR@{expected}\n")
        ask(one, "subscribe@a#b", "ERROR@a topic name must not contain wildcards\n")
        ask(one, "publish@a/*@1", "ERROR@a topic name must not contain wildcards\n")
        ask(one, "subscribe@" + "x" * 65_536, "ERROR@a topic has at most 65535 bytes\n")
        ask(one, "publish@$SYS/x@1", "ERROR@topics that begin with $ are reserved for the broker\n")
        ask(one, "connect", "CONNACK\n")


def test_lines_may_arrive_in_pieces_or_together(server: Server) -> None:
    with server.dial() as one:
        for piece in (b"conn", b"ect\r", b"\nCONNECT"):
            one.sendall(piece)
            let_pass(0.05, "the server reads the piece; no answer tells when it has")
        expect(one, "CONNACK\n")
        ask(one, "", "CONNACK\n")
        one.sendall(b"publish@pieces@x\n" * 3_000 + b"disconnect\n")
        expect(one, "x\nPUBACK\n" * 3_000 + "DISCONNACK\n")


def peak_memory(program: Program) -> int:
    """Return the peak memory of a program in KiB."""
    status = Path(f"/proc/{program.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def test_an_overlong_line_is_skipped(server: Server) -> None:
    before = peak_memory(server.program)
    with server.dial() as one:
        one.sendall(b"publish@news@")
        for _ in range(64):
            one.sendall(b"x" * 1024 * 1024)
        ask(one, "", "ERROR@a line has at most 1048576 bytes\n")
        ask(one, "connect", "CONNACK\n")
    assert peak_memory(server.program) - before < 32 * 1024


def run_client(server: Server, typed: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run the client without a terminal."""
    return subprocess.run(
        [sys.executable, str(CLASSIC / "at_sign/client_host.py"), "--port", str(server.port)],
        input=typed,
        capture_output=True,
        timeout=60,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )


def test_the_client_handles_non_ascii_text_and_long_messages(server: Server) -> None:
    long = "x" * 200_000
    done = run_client(server, b"publish@t1@20 \xc2\xb0C\npublish@t1@\xff\n" + f"publish@t1@{long}\n".encode())
    sent, acknowledged = PROMPT + "client message sent", "server: PUBACK"
    assert done.stdout.decode().splitlines() == [
        *(sent, "20 °C", acknowledged),
        *(sent, "\ufffd", acknowledged),
        *(sent, long, acknowledged),
        *(sent, "server: DISCONNACK"),
    ]
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_client_reports_an_overlong_line(server: Server) -> None:
    done = run_client(server, b"publish@t2@" + b"x" * 1_100_000 + b"\n")
    assert b"server: ERROR@a line has at most 1048576 bytes\n" in done.stdout
    assert (done.returncode, done.stderr) == (0, b"")


def test_ctrl_c_ends_the_client(server: Server, terminal: Callable[[Server], Terminal]) -> None:
    one = terminal(server)
    one.type("\x03")
    assert one.close() == 130
    assert one.lines()[-3:] == ["stopped", "client message sent", "server: DISCONNACK"]


def test_ctrl_c_ends_the_server_and_then_the_client() -> None:
    server = Server()
    one = Terminal(str(CLASSIC / "at_sign/client_host.py"), "--port", str(server.port))
    try:
        one.wait_for(PROMPT)
        server.lines("Connected by ADDRESS", "alternatively,  ADDRESS")
        assert server.program.end(signal.SIGINT) == (0, "", "stopped\n")
        assert one.close() == 1
        assert one.lines()[-1] == "client_host.py: the server has ended the connection"
    finally:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_a_missing_server_is_reported() -> None:
    done = subprocess.run(
        [sys.executable, str(CLASSIC / "at_sign/client_host.py"), "--port", "1"],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "client_host.py: cannot connect to 127.0.0.1:1: Connection refused\n"


def test_a_port_in_use_is_reported(server: Server) -> None:
    second = subprocess.run(
        [sys.executable, str(CLASSIC / "at_sign/server_host.py"), "--port", str(server.port)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (second.returncode, second.stdout) == (1, "")
    where = f"line://127.0.0.1:{server.port}"
    assert second.stderr == f"server_host.py: cannot listen on {where}: Address already in use\n"


def test_it_listens_on_port_8000_and_prints_nothing_of_its_own() -> None:
    program = Program(str(CLASSIC / "at_sign/server_host.py"))
    try:
        with dial_when_open(8_000, program) as one:
            one.sendall(b"connect\n")
            try:
                assert program.line() == f"Connected by {one.getsockname()}\n"
            except Empty:  # another program has the port
                in_use = "server_host.py: cannot listen on line://127.0.0.1:8000: Address already in use\n"
                assert program.end() == (1, "", in_use)
    finally:
        if program.process.poll() is None:
            assert program.end(signal.SIGTERM)[0] == 0

"""The newsroom: its messages, its classes, and the test sequence of its page, line by line."""

from __future__ import annotations

import io
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from queue import Empty

import pytest

from pyrite.classic import common
from pyrite.classic.newsroom import newsroom as newsroom_program
from pyrite.classic.newsroom.client import Client
from pyrite.classic.newsroom.server import MAX_AGE, Server
from tests.classic.programs import CLASSIC, Start
from tests.support.waiting import wait_until

AGE = 6.0
"""Instead of 30 s: what was just published must not grow older than this before it is sent, however busy
the machine is."""


class Running:
    """A server that serves in another thread."""

    def __init__(self, max_age: float = AGE) -> None:
        self.server = Server(port=0, max_age=max_age)
        self.port = self.server.port
        self.serving = threading.Thread(target=self.server.start)
        self.serving.start()
        self._clients: list[Client] = []

    def client(self, action: str, id: str) -> Client:
        """Connect a client."""
        self._clients.append(Client(action, id, port=self.port))
        assert self._clients[-1].reply == "CONN_ACK"
        return self._clients[-1]

    def stop(self) -> None:
        """Stop it."""
        self.server.stop()
        self.serving.join(30)
        assert not self.serving.is_alive()


@pytest.fixture(scope="module")
def newsroom() -> Iterator[Running]:
    """A shared server, for tests that tolerate other tests' messages."""
    running = Running()
    yield running
    running.stop()


@pytest.fixture
def fresh() -> Iterator[Running]:
    """A server that no test has used yet, where messages never become too old."""
    running = Running(max_age=600)
    yield running
    running.stop()


def lines(connected: socket.socket, *expected: str) -> None:
    """Assert the next lines from the server."""
    for line in expected:
        data = b""
        while not data.endswith(b"\n"):
            piece = connected.recv(1)
            assert piece, data
            data += piece
        assert data.decode() == line + "\n"


def test_messages_on_the_wire_are_those_of_the_page(newsroom: Running) -> None:
    with socket.create_connection(("127.0.0.1", newsroom.port), timeout=30) as one:
        lines(one, "CONN_ACK")  # before the client has sent anything
        one.sendall(b"Publisher w|PUB|WEATHER|wind | rain\n")
        lines(one, "Publisher w|PUB|WEATHER|wind | rain")
    with socket.create_connection(("127.0.0.1", newsroom.port), timeout=30) as one:
        one.sendall(b"Subscriber w|SUB|WEATHER\nSubscriber w|DISC\n")
        lines(one, "CONN_ACK", "Subscriber w|SUB|WEATHER", "SUB_ACK")
        rest = b""
        while piece := one.recv(65_536):
            rest += piece
        assert rest.endswith(b"Subscriber w|DISC\nDISC_ACK\n")
    with socket.create_connection(("127.0.0.1", newsroom.port), timeout=30) as one:
        one.sendall(b"Subscriber w|RECON\n")
        lines(one, "CONN_ACK", "Subscriber w|RECON", "CON_ACK")


def test_clients_have_the_names_and_responses_of_the_page(newsroom: Running) -> None:
    publisher, subscriber = newsroom.client("p", "999"), newsroom.client("s", "999")
    assert (publisher.name, subscriber.name) == ("Publisher 999", "Subscriber 999")
    assert publisher.publish("NEWS", "hello") == "Publisher 999|PUB|NEWS|hello"
    assert publisher.send_message("Publisher 999|PUB|NEWS|again") == "Publisher 999|PUB|NEWS|again"
    assert subscriber.subscribe("NEWS") == "SUB_ACK"
    assert subscriber.disconnect() == "DISC_ACK"
    assert subscriber.reconnect() == "CON_ACK"
    assert subscriber.disconnect() == "DISC_ACK"
    assert publisher.send_message("DISC") == "DISC_ACK"
    with pytest.raises(ValueError, match="unknown action 'x': expected 'p' or 's'"):
        Client("x", "1", port=newsroom.port)


def test_a_new_subscriber_receives_old_messages_and_then_new_ones(fresh: Running) -> None:
    publisher, subscriber, other = fresh.client("p", "1"), fresh.client("s", "1"), fresh.client("s", "2")
    publisher.publish("WEATHER", "sunny, with  spaces")
    publisher.publish("NEWS", "elsewhere")
    assert subscriber.subscribe("WEATHER") == "SUB_ACK"
    assert subscriber.wait_for(1) == [("WEATHER", "sunny, with  spaces")]
    publisher.publish("WEATHER", "rain, 20 °C | wind")
    assert subscriber.wait_for(2)[1:] == [("WEATHER", "rain, 20 °C | wind")]
    assert other.subscribe("WEATHER") == "SUB_ACK"
    assert other.wait_for(2) == subscriber.received
    assert subscriber.subscribe("WEATHER") == "SUB_ACK", "again: what is published is sent again"
    assert subscriber.wait_for(4)[2:] == subscriber.received[:2]


def test_the_server_exposes_its_state(fresh: Running) -> None:
    server = fresh.server
    assert server.subscribers == {"NEWS": [], "WEATHER": []}
    assert server.messages == {"NEWS": [], "WEATHER": []}
    assert (server.offline_subscribers, server.offline_queue) == ({}, [])
    publisher, one, two = fresh.client("p", "1"), fresh.client("s", "1"), fresh.client("s", "2")
    one.subscribe("NEWS")
    one.subscribe("NEWS")
    two.subscribe("NEWS")
    two.subscribe("WEATHER")
    assert server.subscribers == {"NEWS": ["Subscriber 1", "Subscriber 2"], "WEATHER": ["Subscriber 2"]}
    one.disconnect()
    two.disconnect()
    assert server.offline_subscribers == {"Subscriber 1": ["NEWS"], "Subscriber 2": ["NEWS", "WEATHER"]}
    assert server.subscribers == {"NEWS": ["Subscriber 1", "Subscriber 2"], "WEATHER": ["Subscriber 2"]}
    before = time.time()
    publisher.publish("NEWS", "n")
    publisher.publish("WEATHER", "w")
    after = time.time()
    assert server.messages == {"NEWS": ["n"], "WEATHER": ["w"]}
    assert sorted(row[:3] for row in server.offline_queue) == [
        ("Subscriber 1", "NEWS", "n"),
        ("Subscriber 2", "NEWS", "n"),
        ("Subscriber 2", "WEATHER", "w"),
    ]
    assert all(before - 1 <= row[3] <= after + 1 for row in server.offline_queue)
    server.clean_queue()
    one.reconnect()
    assert one.wait_for(1) == [("NEWS", "n")]
    assert server.offline_subscribers == {"Subscriber 2": ["NEWS", "WEATHER"]}
    assert {row[0] for row in server.offline_queue} == {"Subscriber 2"}


@pytest.fixture
def aging() -> Iterator[Running]:
    running = Running()
    yield running
    running.stop()


def test_a_returning_subscriber_receives_missed_messages_unless_too_old(aging: Running) -> None:
    server, publisher, subscriber = aging.server, aging.client("p", "1"), aging.client("s", "1")
    subscriber.subscribe("NEWS")
    publisher.publish("NEWS", "first")
    subscriber.wait_for(1)
    subscriber.disconnect()
    publisher.publish("NEWS", "old")
    assert [row[2] for row in server.offline_queue] == ["old"]

    def is_clean() -> bool:
        server.clean_queue()
        return not server.offline_queue

    wait_until(is_clean, "the message is too old")
    publisher.publish("NEWS", "fresh")
    assert subscriber.reconnect() == "CON_ACK"
    assert subscriber.wait_for(2) == [("NEWS", "first"), ("NEWS", "fresh")]
    assert server.offline_queue == []
    publisher.publish("NEWS", "live")
    assert subscriber.wait_for(3)[2:] == [("NEWS", "live")]
    subscriber.disconnect()
    subscriber.reconnect()
    publisher.publish("NEWS", "last")
    assert subscriber.wait_for(4)[3:] == [("NEWS", "last")], "nothing comes twice"


def test_reconnecting_cleans_the_queue() -> None:
    running = Running(max_age=0.0)
    try:
        publisher, one, two = running.client("p", "1"), running.client("s", "1"), running.client("s", "2")
        for subscriber in (one, two):
            subscriber.subscribe("NEWS")
            subscriber.disconnect()
        publisher.publish("NEWS", "old")
        assert len(running.server.offline_queue) == 2
        one.reconnect()
        assert running.server.offline_queue == []
        publisher.publish("NEWS", "live")
        assert one.wait_for(1) == [("NEWS", "live")]
    finally:
        running.stop()
    assert MAX_AGE == 30


def test_a_subscriber_with_a_lost_connection_is_offline(fresh: Running) -> None:
    publisher, subscriber = fresh.client("p", "1"), fresh.client("s", "1")
    subscriber.subscribe("NEWS")
    with socket.create_connection(("127.0.0.1", fresh.port), timeout=30) as other:
        other.sendall(b"Subscriber 2|SUB|NEWS\n")
        lines(other, "CONN_ACK", "Subscriber 2|SUB|NEWS", "SUB_ACK")
    wait_until(lambda: fresh.server.offline_subscribers, "the subscriber is away")
    assert fresh.server.offline_subscribers == {"Subscriber 2": ["NEWS"]}
    publisher.publish("NEWS", "n")
    assert [row[:3] for row in fresh.server.offline_queue] == [("Subscriber 2", "NEWS", "n")]


def test_clients_wait_until_the_server_starts(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(port=0)
    assert capsys.readouterr().out == f"Server is ready on 127.0.0.1:{server.port} (this machine only)\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as one:
        assert server.messages == {"NEWS": [], "WEATHER": []}
        server.clean_queue()
        serving = threading.Thread(target=server.start)
        serving.start()
        lines(one, "CONN_ACK")
        server.stop()
        serving.join(30)
        assert one.recv(1_000) == b""


def test_a_server_that_was_never_started_can_be_stopped() -> None:
    server = Server(port=0)
    server.stop()
    server.stop()
    server.start()


def has_received(client: Client, message: tuple[str, str]) -> bool:
    return message in client.wait_for(len(client.received) + 1, 0.2)


def test_every_subscriber_receives_every_message(newsroom: Running) -> None:
    publisher = newsroom.client("p", "many")
    with socket.create_connection(("127.0.0.1", newsroom.port), timeout=30) as flood:
        flood.sendall(b"".join(b"Publisher f|PUB|NEWS|flood %d\n" % number for number in range(300)))
        lines(flood, "CONN_ACK", *(f"Publisher f|PUB|NEWS|flood {number}" for number in range(300)))
    subscribers = [newsroom.client("s", f"many {number}") for number in range(5)]
    for one in subscribers:
        one.subscribe("NEWS")
    publisher.publish("NEWS", "the end")
    for one in subscribers:
        wait_until(partial(has_received, one, ("NEWS", "the end")), "the last message")
        came = [content for _, content in one.received if content.startswith("flood")]
        assert came == [f"flood {number}" for number in range(300)]
        one.disconnect()


def test_unlisted_subjects_and_unknown_actions_are_errors(newsroom: Running) -> None:
    one = newsroom.client("s", "refused")
    unlisted = "ERROR unlisted subject '{}': expected NEWS or WEATHER"
    shape = "ERROR expected NAME|PUB|SUBJECT|CONTENT, NAME|SUB|SUBJECT, NAME|RECON or NAME|DISC"
    for subject in ("SPORT", "#", "+", "", "news", "$SYS/broker"):
        assert one.subscribe(subject) == unlisted.format(subject)
        assert one.publish(subject, "x") == unlisted.format(subject)
    unknown = "ERROR unknown action 'DANCE': expected DISC, RECON, SUB or PUB"
    assert one.send_message("Subscriber refused|DANCE") == unknown
    assert one.send_message("DANCE") == unknown
    assert one.send_message("Subscriber refused|PUB") == shape
    assert one.send_message("|SUB|NEWS") == shape
    assert one.subscribe("NEWS") == "SUB_ACK"
    assert one.send_message("Subscriber 1|SUB|NEWS") == "ERROR this connection is that of Subscriber refused"
    assert one.disconnect() == "DISC_ACK"
    with pytest.raises(ConnectionError, match="Subscriber refused is not connected"):
        one.publish("NEWS", "x")


def test_long_messages_and_non_ascii_text_are_delivered(newsroom: Running) -> None:
    one = newsroom.client("p", "ß")
    assert one.publish("NEWS", "ü" * 100_000) == f"Publisher ß|PUB|NEWS|{'ü' * 100_000}"
    assert one.publish("NEWS", "x" * 2_000_000) == "ERROR a line has at most 1048576 bytes"
    assert one.publish("NEWS", "after") == "Publisher ß|PUB|NEWS|after"
    with pytest.raises(ValueError, match="a message is one line"):
        one.publish("NEWS", "two\nlines")
    one.disconnect()


def test_a_failed_connection_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    running = Running()
    try:
        running.server._newsroom.config.limits.max_connections_per_address = 1
        running.client("p", "1")
        with pytest.raises(ConnectionError):
            Client("p", "2", port=running.port)
    finally:
        running.stop()
    expected = "error: a connection from 127.0.0.1 is refused: too many connections"
    assert expected in capsys.readouterr().out.splitlines()
    with pytest.raises(
        ConnectionError, match=f"cannot connect to 127.0.0.1:{running.port}: Connection refused"
    ):
        Client("p", "1", port=running.port)


SEQUENCE = f"""\
Run the test sequence? (Y/N) Step 1: the server starts
Server is ready on 127.0.0.1:PORT (this machine only)
Step 2: publishers connect, and publish what is stored
Publisher 1 connects: CONN_ACK
Publisher 2 connects: CONN_ACK
Publisher 1 publishes: Publisher 1|PUB|NEWS|the first on NEWS
Publisher 2 publishes: Publisher 2|PUB|WEATHER|the first on WEATHER
Step 3: subscribers connect, subscribe, and receive what was stored
Subscriber 1 connects: CONN_ACK
Subscriber 2 connects: CONN_ACK
Subscriber 3 connects: CONN_ACK
Subscriber 1 subscribes to NEWS: SUB_ACK
Subscriber 2 subscribes to WEATHER: SUB_ACK
Subscriber 3 subscribes to NEWS: SUB_ACK
Subscriber 3 subscribes to WEATHER: SUB_ACK
Subscriber 1 receives: [('NEWS', 'the first on NEWS')]
Subscriber 2 receives: [('WEATHER', 'the first on WEATHER')]
Subscriber 3 receives: [('NEWS', 'the first on NEWS'), ('WEATHER', 'the first on WEATHER')]
Step 4: publishers go on, and subscribers receive what is new
Publisher 1 publishes: Publisher 1|PUB|NEWS|the second on NEWS
Publisher 2 publishes: Publisher 2|PUB|WEATHER|the second on WEATHER
Subscriber 1 receives: [('NEWS', 'the second on NEWS')]
Subscriber 2 receives: [('WEATHER', 'the second on WEATHER')]
Subscriber 3 receives: [('NEWS', 'the second on NEWS'), ('WEATHER', 'the second on WEATHER')]
Error handling 1: a subscriber subscribes to an unlisted subject
Subscriber 1 subscribes to SPORT: ERROR unlisted subject 'SPORT': expected NEWS or WEATHER
Error handling 2: a publisher publishes on an unlisted subject
Publisher 1 publishes on SPORT: ERROR unlisted subject 'SPORT': expected NEWS or WEATHER
Step 5: all subscribers disconnect
Subscriber 1 disconnects: DISC_ACK
Subscriber 2 disconnects: DISC_ACK
Subscriber 3 disconnects: DISC_ACK
Step 6: of what is published now, what is older than {AGE:g} s is not received
Publisher 1 publishes: Publisher 1|PUB|NEWS|the old on NEWS
Publisher 2 publishes: Publisher 2|PUB|WEATHER|the old on WEATHER
waiting for {AGE:g} s
Publisher 1 publishes: Publisher 1|PUB|NEWS|the recent on NEWS
Publisher 2 publishes: Publisher 2|PUB|WEATHER|the recent on WEATHER
Subscriber 1 reconnects: CON_ACK
Subscriber 2 reconnects: CON_ACK
Subscriber 3 reconnects: CON_ACK
Subscriber 1 receives: [('NEWS', 'the recent on NEWS')]
Subscriber 2 receives: [('WEATHER', 'the recent on WEATHER')]
Subscriber 3 receives: [('NEWS', 'the recent on NEWS'), ('WEATHER', 'the recent on WEATHER')]
Step 7: all clients disconnect
Subscriber 1 disconnects: DISC_ACK
Subscriber 2 disconnects: DISC_ACK
Subscriber 3 disconnects: DISC_ACK
Publisher 1 disconnects: DISC_ACK
Publisher 2 disconnects: DISC_ACK
"""


def test_the_sequence_of_the_page_runs_line_by_line() -> None:
    done = subprocess.run(
        [sys.executable, str(CLASSIC / "newsroom/newsroom.py"), "--port", "0", "--max-age", f"{AGE:g}"],
        input="y\n",
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", done.stdout) == SEQUENCE


@pytest.mark.parametrize("answer", ["N", "n", "", "perhaps\nn"])
def test_the_sequence_runs_only_on_request(
    answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    assert newsroom_program.main([]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Run the test sequence? (Y/N) ")
    assert said.endswith("the test sequence was not run\n")
    assert "Step" not in said


def test_the_server_program_reports_that_it_is_ready_and_stops(start: Start) -> None:
    server = start("newsroom/server.py", "--port", "0")
    ready = re.fullmatch(r"Server is ready on 127\.0\.0\.1:(\d+) \(this machine only\)\n", server.line())
    assert ready is not None
    port = int(ready[1])
    one = Client("p", "1", port=port)
    assert one.publish("NEWS", "hello") == "Publisher 1|PUB|NEWS|hello"
    second = start("newsroom/server.py", "--port", str(port))
    expected = f"server.py: cannot listen on line://127.0.0.1:{port}: Address already in use\n"
    assert second.end() == (1, "", expected)
    assert server.end(signal.SIGINT) == (0, "", "stopped\n")
    with pytest.raises(ConnectionError, match="the server has ended the connection"):
        one.publish("NEWS", "is anyone there?")


def test_the_server_can_listen_on_all_addresses(start: Start) -> None:
    server = start("newsroom/server.py", "--host", "0.0.0.0", "--port", "0")
    ready = re.fullmatch(r"Server is ready on 0\.0\.0\.0:(\d+) \(for other machines too\)\n", server.line())
    assert ready is not None
    with socket.create_connection(("127.0.0.2", int(ready[1])), timeout=30) as one:
        lines(one, "CONN_ACK")
    assert server.end(signal.SIGTERM)[0] == 0


def test_the_sequence_reports_a_port_in_use(
    newsroom: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Y\n"))
    assert newsroom_program.main(["--port", str(newsroom.port)]) == 1
    where = f"line://127.0.0.1:{newsroom.port}"
    assert capsys.readouterr().err == f"{common.name()}: cannot listen on {where}: Address already in use\n"


def test_ctrl_c_ends_the_sequence() -> None:
    program = subprocess.Popen(
        [sys.executable, str(CLASSIC / "newsroom/newsroom.py"), "--port", "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("Y\n")
    program.stdin.flush()
    while not program.stdout.readline().startswith("waiting"):
        pass
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=60)
    assert (program.returncode, errors) == (130, "stopped\n")


def test_it_listens_on_port_12345(start: Start) -> None:
    server = start("newsroom/server.py")
    try:
        assert server.line() == "Server is ready on 127.0.0.1:12345 (this machine only)\n"
        assert Client("p", "1").reply == "CONN_ACK"
    except Empty:  # another program has the port
        in_use = "server.py: cannot listen on line://127.0.0.1:12345: Address already in use\n"
        assert server.end() == (1, "", in_use)
    else:
        assert server.end(signal.SIGTERM) == (0, "", "stopped\n")

"""However much one user reads from the log, another user's reads wait for a few turns; a stop waits for none.

`many` reads a long log, mostly for nothing, in as many ways as there are; `one` has some messages at its end.
Without fair turns, `one` waits for everything that `many` asked for before: 7 to 40 s.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pyrite.access.users import User, write_users
from tests.conformance.wire import connect_packet, options, publish_packet, subscribe_packet
from tests.support.passwords import quick_hash
from tests.support.process import BrokerProcess

pytestmark = [pytest.mark.xdist_group("hostile"), pytest.mark.timeout(300)]

CONFIG = """
[access]
users = "users"

[[access.rule]]
users = ["many", "one"]
publish = ["#"]
subscribe = ["#"]
pull = ["#"]

[quotas.user.many]
concurrent_reads = "unlimited"
"""
MQTT, HTTP = range(2)
LONG = 400_000
"""Messages of the log that no one wants."""
OWN, SIZE = 2_000, 1_000
"""Messages that `one` wants, and their bytes."""
SESSIONS, PULLS, PAGES = 300, 900, 300
TOGETHER = 20_000
"""Messages published before their acknowledgements are awaited."""
BOUND = 60.0
"""Seconds after which a test gives up."""
DELAY = 2.0
"""Seconds that `many` may delay `one`: much more than some turns of 20 ms, for slow machines."""
STOP = 4.0
"""Seconds that a stop may take: one of them is for clients, which may take what they are sent."""


class Place:
    """A broker with a long log, and two users."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker

    def dial(self, listener: int, user: str, number: int = 0) -> socket.socket:
        """Connect; `one` comes from another address than `many`, and no address is too busy."""
        address = "127.0.0.2" if user == "one" else f"127.0.1.{1 + number % 9}"
        return socket.create_connection(("127.0.0.1", self.broker.port(listener)), BOUND, (address, 0))

    def connect(self, user: str, client_id: str, number: int = 0, **values: Any) -> socket.socket:
        """Send a CONNECT; `admitted` awaits its answer."""
        client = self.dial(MQTT, user, number)
        client.sendall(connect_packet(client_id, username=user, password=b"x", **values))
        return client

    def request(self, user: str, method: str, path: str, body: bytes = b"", number: int = 0) -> socket.socket:
        """Send an HTTP request; `answer` awaits its answer."""
        client = self.dial(HTTP, user, number)
        given = base64.b64encode(f"{user}:x".encode()).decode()
        client.sendall(
            f"{method} /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {given}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + body
        )
        return client

    def concurrent_reads(self) -> int:
        """Return how many reads and waiting pulls `many` has over HTTP."""
        (account,) = answer(self.request("many", "GET", "quotas"))["accounts"]
        reads: int = account["quotas"]["concurrent_reads"]["used"]
        return reads

    def fill(self) -> None:
        """Leave sessions of `many` behind, and publish a long log."""
        for number in range(SESSIONS):
            values = {"clean": False, "session_expiry_interval": 3_600}
            with self.connect("many", f"session {number}", **values) as client:
                admitted(client)
                client.sendall(subscribe_packet(1, [("rare", options(qos=1))]))
                assert client.recv(100)[0] == 0x90
        with self.connect("one", "publisher", version=4) as publisher:
            admitted(publisher)
            publish(publisher, "rare", b"first", 1)  # from here on the sessions have to read
            publish(publisher, "long", b"x" * 20, LONG)
            publish(publisher, "rare", b"last", 1)
            publish(publisher, "own", b"y" * SIZE, OWN)

    # What `one` does, and how long it takes

    def catch_up(self) -> float:
        began = time.monotonic()
        with self.connect("one", "catches up") as client:
            admitted(client)
            past = ("pyrite-from", str(LONG))
            client.sendall(subscribe_packet(1, [("own", options(qos=1))], user_property=past))
            came = 0
            while came < OWN * SIZE:
                came += len(client.recv(1 << 20))
        return time.monotonic() - began

    def pull(self) -> float:
        began = time.monotonic()
        name = f"consumers/{time.monotonic_ns()}/pull"
        messages = answer(self.request("one", "POST", name, b'{"filter": "own", "max": 5}'))["messages"]
        assert len(messages) == 5
        return time.monotonic() - began

    def page(self) -> float:
        began = time.monotonic()
        path = f"streams/default/messages?filter=own&limit=5&from={LONG}"
        assert len(answer(self.request("one", "GET", path))["messages"]) == 5
        return time.monotonic() - began


def admitted(client: socket.socket) -> None:
    """Await a CONNACK without an error."""
    head = client.recv(2)
    assert head[0] == 0x20
    rest = client.recv(head[1], socket.MSG_WAITALL)
    assert rest[1] == 0, rest


def publish(client: socket.socket, topic: str, payload: bytes, count: int) -> None:
    """Publish messages with QoS 1, and await the acknowledgements."""
    for first in range(0, count, TOGETHER):
        ids = range(1, 1 + min(TOGETHER, count - first))
        data = b"".join(publish_packet(topic, payload, qos=1, packet_id=one, version=4) for one in ids)
        sending = threading.Thread(target=client.sendall, args=(data,))
        sending.start()
        left = 4 * len(ids)
        while left:
            left -= len(client.recv(1 << 20))
        sending.join()


def answer(client: socket.socket) -> Any:
    """Await the answer to a request, and return its JSON."""
    with client:
        data = b""
        while read := client.recv(1 << 20):
            data += read
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), data
    return json.loads(body)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder: Path = tmp_path_factory.mktemp("reads")
    write_users(folder / "users", [User(name, quick_hash("x")) for name in ("many", "one")])
    (folder / "pyrite.toml").write_text(CONFIG)
    listen = ("--listen=mqtt://127.0.0.1:0", "--listen=http://127.0.0.1:0")
    with BrokerProcess("--config=pyrite.toml", "--data=data", *listen, cwd=folder) as broker:
        place = Place(broker)
        place.fill()
        yield place
        assert not [line for line in broker.log if "internal error" in line or "Traceback" in line]


@pytest.fixture
def crowd() -> Iterator[ExitStack]:
    """Connections that are closed after the test."""
    with ExitStack() as stack:
        yield stack


def check_delay(idle: float, busy: float) -> None:
    assert busy < idle + DELAY, f"{busy:.2f} s, {idle:.2f} s when nobody else reads"


def idle_time(work: Callable[[], float]) -> float:
    return min(work() for _ in range(3))


def test_900_waiting_pulls_of_one_user_delay_no_pull_and_no_catch_up_of_another(
    place: Place, crowd: ExitStack
) -> None:
    pull, catch_up = idle_time(place.pull), idle_time(place.catch_up)
    for number in range(PULLS):
        asked = b'{"filter": "none", "wait": 30}'
        crowd.enter_context(place.request("many", "POST", f"consumers/many-{number}/pull", asked, number))
    while place.concurrent_reads() < PULLS:  # each reads the whole log first
        pass
    check_delay(pull, place.pull())
    check_delay(catch_up, place.catch_up())


def test_many_long_reads_of_one_user_over_http_do_not_delay_a_read_of_another(
    place: Place, crowd: ExitStack
) -> None:
    page = idle_time(place.page)
    for number in range(PAGES):
        crowd.enter_context(place.request("many", "GET", "streams/default/messages?filter=none", b"", number))
    while not (there := place.concurrent_reads()):
        pass
    check_delay(page, place.page())
    assert there > PAGES / 2, "enough wait to be noticed"


def test_300_resuming_sessions_of_one_user_do_not_delay_a_catch_up_of_another(
    place: Place, crowd: ExitStack
) -> None:
    catch_up = idle_time(place.catch_up)
    sessions = []
    for number in range(SESSIONS):
        client = place.connect(
            "many", f"session {number}", number, clean=False, session_expiry_interval=3_600
        )
        sessions.append(crowd.enter_context(client))
    for client in sessions:
        admitted(client)
    check_delay(catch_up, place.catch_up())
    came = b""
    while not came.endswith(b"last"):
        came += sessions[0].recv(1_000)


def test_a_stop_discards_the_reads_that_wait(place: Place, crowd: ExitStack) -> None:
    """This test comes last: it ends the broker."""
    clients = [place.connect("many", f"replay {number}", number) for number in range(SESSIONS)]
    for client in clients:
        crowd.enter_context(client)
        admitted(client)
        client.sendall(subscribe_packet(1, [("none", options())], user_property=("pyrite-from", "earliest")))
    for client in clients:
        assert client.recv(100)[0] == 0x90
    began = time.monotonic()
    place.broker.process.terminate()
    assert place.broker.process.wait(BOUND) == 0
    took = time.monotonic() - began
    assert took < STOP, f"{took:.1f} s"

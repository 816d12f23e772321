"""The newsroom: two subjects, what was stored, and subscribers who come back in time or not."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pyrite.classic.newsroom.client import Client
from pyrite.classic.newsroom.server import Server
from tests.classic.programs import CLASSIC

MAX_AGE = 1.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(port=0, max_age=MAX_AGE) as started:
        yield started


def client(server: Server, action: str, name: str) -> Client:
    made = Client(action, name, port=server.port)
    assert made.reply == "CONN_ACK"
    return made


def test_publish_subscribe_and_what_was_stored(server: Server) -> None:
    publisher = client(server, "p", "stored")
    assert publisher.name == "Publisher stored"
    assert publisher.publish("WEATHER", "sunny, with  spaces") == "PUB_ACK"
    time.sleep(MAX_AGE + 0.2)  # what was published is stored, however old it is
    subscriber = client(server, "s", "stored")
    assert subscriber.subscribe("WEATHER") == "SUB_ACK"
    assert subscriber.wait_for(1) == [("WEATHER", "sunny, with  spaces")]
    assert publisher.publish("WEATHER", "rain") == "PUB_ACK"
    assert subscriber.wait_for(2)[1:] == [("WEATHER", "rain")]
    assert subscriber.disconnect() == "DISC_ACK"
    assert publisher.disconnect() == "DISC_ACK"


def test_who_comes_back_is_sent_what_was_missed_and_is_not_too_old(server: Server) -> None:
    publisher, subscriber = client(server, "p", "back"), client(server, "s", "back")
    subscriber.subscribe("NEWS")
    publisher.publish("NEWS", "first")
    subscriber.wait_for(1)
    before = len(subscriber.received)
    subscriber.disconnect()
    publisher.publish("NEWS", "old")
    time.sleep(MAX_AGE + 0.3)
    publisher.publish("NEWS", "fresh")
    assert subscriber.reconnect() == "CON_ACK"
    assert subscriber.wait_for(before + 1)[before:] == [("NEWS", "fresh")]
    publisher.publish("NEWS", "live")
    assert subscriber.wait_for(before + 2)[before:] == [("NEWS", "fresh"), ("NEWS", "live")]
    subscriber.disconnect()
    assert subscriber.reconnect() == "CON_ACK"
    publisher.publish("NEWS", "last")
    assert subscriber.wait_for(before + 3)[before + 2 :] == [("NEWS", "last")], "nothing comes twice"
    subscriber.disconnect()
    publisher.disconnect()


def test_what_is_refused(server: Server) -> None:
    one = client(server, "s", "refused")
    text = "ERROR {}there is no topic 'SPORT' here: there are NEWS, WEATHER"
    assert one.subscribe("SPORT") == text.format("Subscribe: ")
    assert one.publish("SPORT", "x") == text.format("")
    assert one.send_message("DANCE").startswith("ERROR unknown action")
    assert one.send_message("PUB").startswith("ERROR unknown action")
    with pytest.raises(ValueError, match="unknown action 'x': expected 'p' or 's'"):
        Client("x", "1", port=server.port)
    one.disconnect()
    with pytest.raises(ConnectionError):
        one.publish("NEWS", "x")


@pytest.mark.parametrize(("answer", "runs"), [("Y", True), ("n", False), ("", False)])
def test_the_sequence_after_the_question(answer: str, runs: bool) -> None:
    done = subprocess.run(
        [sys.executable, str(CLASSIC / "newsroom/newsroom.py"), "--port", "0", "--max-age", "1"],
        input=answer + "\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Run the test sequence? (Y/N) ")
    assert ("receives only the second: [('NEWS', 'fresh')]" in done.stdout) == runs
    assert "FAILED" not in done.stdout

"""The distributed broker: topics are created, messages sent and pulled, each by every subscriber once."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyrite.classic.distributed import broker as functions
from pyrite.classic.distributed.broker import Publisher, Subscriber
from pyrite.client.line import LineError
from tests.classic.programs import CLASSIC, Program, Start


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the server, and return its port."""
    data = tmp_path_factory.mktemp("server") / "data"
    program = Program(str(CLASSIC / "distributed/server.py"), "--port", "0", "--data", str(data))
    try:
        said = program.line()
        assert re.fullmatch(r"Server started on localhost:\d+\n", said)
        yield said.rstrip().rpartition(":")[2]
    finally:
        code, _, errors = program.end(signal.SIGINT)
    assert code == 0
    assert errors == ""


Publish = Callable[..., tuple[int, str, str]]


@pytest.fixture
def publish(start: Start, server: str) -> Publish:
    return lambda *arguments: start("distributed/publisher.py", "--port", server, *arguments).end()


def test_create_publish_pull_delete(start: Start, publish: Publish, server: str) -> None:
    assert publish("--create", "my_topic") == (0, "Topic 'my_topic' created\n", "")
    subscribers = [
        start("distributed/subscriber.py", "--port", server, "--subscribe", "my_topic") for _ in range(2)
    ]
    for subscriber in subscribers:
        assert subscriber.line() == "Subscribed to 'my_topic'\n"
    for message in ("Hello, world!", "again"):
        assert publish("--publish", "my_topic", message) == (0, "Message sent to 'my_topic'\n", "")
    for subscriber in subscribers:
        assert [subscriber.line(), subscriber.line()] == ["Hello, world!\n", "again\n"]
        code, rest, errors = subscriber.end(signal.SIGINT)
        assert (code, rest) == (130, "")
        assert "Traceback" not in errors
    assert publish("--delete", "my_topic") == (0, "Topic 'my_topic' deleted\n", "")
    missing = "publisher.py: Publish: there is no topic 'my_topic': create it first\n"
    assert publish("--publish", "my_topic", "x") == (1, "", missing)
    assert publish("--delete", "my_topic")[0] == 1


def test_what_came_while_a_subscriber_was_away(start: Start, publish: Publish, server: str) -> None:
    publish("--create", "away")
    arguments = ("distributed/subscriber.py", "--port", server, "--subscribe", "away", "--name", "me")
    first = start(*arguments)
    first.line()
    publish("--publish", "away", "one")
    assert first.line() == "one\n"
    first.end(signal.SIGINT)
    publish("--publish", "away", "two")
    second = start(*arguments)
    assert [second.line(), second.line()] == ["Subscribed to 'away'\n", "two\n"]


def test_wrong_use_is_told(start: Start, publish: Publish, server: str) -> None:
    assert publish()[0] == 2
    code, printed, errors = start(
        "distributed/subscriber.py", "--port", server, "--subscribe", "nothing"
    ).end()
    assert (code, printed) == (1, "")
    assert "there is no topic 'nothing': create it first" in errors
    assert start("distributed/publisher.py", "--port", "1", "--create", "x").end()[0] == 1


def test_the_functions(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "_publishers", [])
    monkeypatch.setattr(functions, "_subscribers", [])
    with pytest.raises(RuntimeError, match="registerPublisher"):
        functions.send("a", "b")
    with pytest.raises(RuntimeError, match="registerSubscriber"):
        functions.pull("a")
    functions.registerPublisher(port=int(server))
    functions.registerSubscriber(port=int(server))
    try:
        functions.createTopic("functions")
        functions.subscribe("functions")
        assert functions.pull("functions") == []
        for number in range(3):
            functions.send("functions", f"message {number}")
        assert functions.pull("functions") == ["message 0", "message 1", "message 2"]
        assert functions.pull("functions") == []
        functions.deleteTopic("functions")
        with pytest.raises(LineError, match="there is no topic 'functions'"):
            functions.send("functions", "too late")
    finally:
        functions._publishers[0].close()
        functions._subscribers[0].close()


def test_many_publishers_and_subscribers(server: str) -> None:
    publishers = [Publisher(port=int(server)) for _ in range(4)]
    subscribers = [Subscriber(port=int(server)) for _ in range(4)]
    publishers[0].createTopic("many")
    for subscriber in subscribers:
        subscriber.subscribe("many")
    for number, publisher in enumerate(publishers):
        publisher.sendAll("many", [f"{number}.{at}" for at in range(500)])
    for subscriber in subscribers:
        got: list[str] = []
        while new := subscriber.pull("many"):
            got += new
        for number in range(4):
            assert [one for one in got if one.startswith(f"{number}.")] == [
                f"{number}.{at}" for at in range(500)
            ]
        assert len(got) == 2_000
    everyone: list[Publisher | Subscriber] = [*publishers, *subscribers]
    for one in everyone:
        one.close()


@pytest.mark.parametrize(("name", "what"), [("createTopic", "topics"), ("send", "messages")])
def test_the_benchmarks(start: Start, server: str, name: str, what: str) -> None:
    arguments = ("--port", server, "--clients", "2", "--count", "6000")
    program = start(f"distributed/benchmark_{name}.py", *arguments, python=sys.executable)
    code, printed, errors = program.end()
    assert (code, errors) == (0, "")
    assert f"{what}/s" in printed
    assert re.search(r"all\W+12,000\W+[\d.]+\W+[\d,]+", printed)


def test_a_benchmark_without_a_server_ends(start: Start, tmp_path: Path) -> None:
    program = start("distributed/benchmark_send.py", "--port", "1", "--clients", "1", "--count", "10")
    code, printed, _ = program.end()
    assert code == 1
    assert "refused" in printed

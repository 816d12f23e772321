"""The distributed broker: the session, functions and benchmarks of its page."""

from __future__ import annotations

import ast
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyrite.classic.distributed import benchmark_createTopic, benchmark_send
from pyrite.classic.distributed import publisher as publishing
from pyrite.classic.distributed import server as serving
from pyrite.classic.distributed import subscriber as subscribing
from pyrite.classic.distributed.publisher import Publisher
from pyrite.classic.distributed.subscriber import Subscriber
from pyrite.client.line import LineClient, LineError
from tests.classic.programs import CLASSIC, Program, Start


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the server; returns its port."""
    data = tmp_path_factory.mktemp("server") / "data"
    program = Program(str(CLASSIC / "distributed/server.py"), "--port", "0", "--data", str(data))
    try:
        said = program.line()
        assert re.fullmatch(r"Server started on localhost:\d+\n", said)
        yield said.rstrip().rpartition(":")[2]
    finally:
        code, rest, errors = program.end(signal.SIGINT)
    assert (code, rest, errors) == (0, "", "stopped\n")


Publish = Callable[..., tuple[int, str, str]]


@pytest.fixture
def publish(start: Start, server: str) -> Publish:
    return lambda *arguments: start("distributed/publisher.py", "--port", server, *arguments).end()


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reset the registered publisher and subscriber of this process."""
    monkeypatch.setattr(publishing, "_registered", [])
    monkeypatch.setattr(subscribing, "_registered", [])
    yield
    everyone: list[Publisher | Subscriber] = [*publishing._registered, *subscribing._registered]
    for one in everyone:
        one.close()


def test_the_session_of_the_page_runs_as_shown(start: Start, publish: Publish, server: str) -> None:
    """Start, create, publish twice, subscribe, delete: the page's commands, and each line that they print.

    The server's own line is compared where it is started.
    """
    assert publish("--create", "my_topic") == (0, "Topic 'my_topic' created\n", "")
    first, second = (
        start("distributed/subscriber.py", "--port", server, "--subscribe", "my_topic") for _ in range(2)
    )
    for subscriber in (first, second):
        assert subscriber.line() == "Subscribed to 'my_topic'\n"
    for message in ("Hello, world!", "Your message here"):
        assert publish("--publish", "my_topic", message) == (0, "Message sent to 'my_topic'\n", "")
    for subscriber in (first, second):
        assert [subscriber.line(), subscriber.line()] == ["Hello, world!\n", "Your message here\n"]
    assert first.end(signal.SIGINT) == (130, "", "stopped\n")
    assert publish("--delete", "my_topic") == (0, "Topic 'my_topic' deleted\n", "")
    assert second.end() == (1, "", "subscriber.py: Topic 'my_topic' was deleted\n")


def test_the_defaults_are_localhost_and_port_5555(capsys: pytest.CaptureFixture[str]) -> None:
    assert (serving.HOST, serving.PORT) == ("localhost", 5555)
    for program in (publishing, subscribing, benchmark_createTopic, benchmark_send):
        with pytest.raises(SystemExit, match="0"):
            program.main(["--help"])
        printed = capsys.readouterr().out
        assert "(default: localhost)" in printed
        assert "(default: 5555)" in printed


def test_host_and_port_in_the_server_file_are_the_defaults_of_all_programs(
    start: Start, checkout: Path, tmp_path: Path
) -> None:
    """The page tells users to modify them there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = checkout / "classic/distributed"
    source = folder / "server.py"
    before = source.read_text()
    source.write_text(
        before.replace('HOST = "localhost"', 'HOST = "127.0.0.1"').replace("PORT = 5555", f"PORT = {port}")
    )
    try:
        server = start(str(source), cwd=tmp_path)
        assert server.line() == f"Server started on 127.0.0.1:{port}\n"
        created = start(str(folder / "publisher.py"), "--create", "set")
        assert created.end() == (0, "Topic 'set' created\n", "")
        assert server.end(signal.SIGINT) == (0, "", "stopped\n")
    finally:
        source.write_text(before)


def test_a_server_for_other_machines_lets_their_clients_in(start: Start, tmp_path: Path) -> None:
    server = start("distributed/server.py", "--host", "0.0.0.0", "--port", "0", "--data", str(tmp_path / "d"))
    said = server.line()
    assert re.fullmatch(r"Server started on 0\.0\.0\.0:\d+\n", said)
    where = ("--host", "127.0.0.1", "--port", said.rstrip().rpartition(":")[2])
    assert start("distributed/publisher.py", *where, "--create", "far").end()[0] == 0
    subscriber = start("distributed/subscriber.py", *where, "--subscribe", "far")
    assert subscriber.line() == "Subscribed to 'far'\n"
    assert start("distributed/publisher.py", *where, "--publish", "far", "away").end()[0] == 0
    assert subscriber.line() == "away\n"
    assert subscriber.end(signal.SIGINT)[0] == 130
    assert server.end(signal.SIGINT) == (0, "", "stopped\n")


def test_a_topic_that_exists_is_not_created_again(publish: Publish) -> None:
    assert publish("--create", "twice") == (0, "Topic 'twice' created\n", "")
    assert publish("--create", "twice") == (1, "", "publisher.py: Topic 'twice' already exists\n")


def test_a_topic_that_does_not_exist_is_reported(start: Start, publish: Publish, server: str) -> None:
    problem = "there is no topic 'nothing': create it first\n"
    assert publish("--publish", "nothing", "x") == (1, "", f"publisher.py: Publish: {problem}")
    assert publish("--delete", "nothing") == (1, "", "publisher.py: Delete: there is no topic 'nothing'\n")
    subscriber = start("distributed/subscriber.py", "--port", server, "--subscribe", "nothing")
    assert subscriber.end() == (1, "", f"subscriber.py: Register: {problem}")


def test_a_subscriber_receives_only_the_topics_that_it_subscribed_to(server: str) -> None:
    publisher, subscriber = Publisher(port=int(server)), Subscriber(port=int(server))
    for topic in ("wanted", "unwanted"):
        publisher.createTopic(topic)
    subscriber.subscribe("wanted")
    publisher.send("unwanted", "no")
    publisher.send("wanted", "yes")
    assert subscriber.pull("wanted") == ["yes"]
    with pytest.raises(LineError, match="Not subscribed to 'unwanted'"):
        subscriber.pull("unwanted")
    subscriber.close()
    publisher.close()


def test_a_named_subscriber_receives_messages_sent_while_it_was_away(
    start: Start, publish: Publish, server: str
) -> None:
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


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM])
def test_the_server_keeps_nothing_of_an_unnamed_subscriber(server: str, number: int | None) -> None:
    """Neither from the program after a signal, nor from a script at its end."""
    topic = f"ended-{number}"
    program = f'sys.exit(subscriber.main(["--port", "{server}", "--subscribe", "{topic}"]))'
    script = f'subscriber.registerSubscriber(port={server}); subscriber.subscribe("{topic}")'
    code = "import subscriber, sys, uuid; subscriber.uuid4 = lambda: uuid.UUID(int=7); {}"
    with LineClient("localhost", int(server)) as client:
        client.create(topic)
        running = Program("-c", code.format(program if number else script), cwd=CLASSIC / "distributed")
        if number:
            assert running.line() == f"Subscribed to '{topic}'\n"
            assert client.pull(f"{7:032x}/{topic}") == []
        assert running.end(number)[0] == (130 if number else 0)
        with pytest.raises(LineError, match="there is no consumer"):
            client.pull(f"{7:032x}/{topic}")


def test_a_topic_can_be_deleted_and_created_again(server: str) -> None:
    publisher, subscriber = Publisher(port=int(server)), Subscriber(port=int(server))
    publisher.createTopic("again")
    subscriber.subscribe("again")
    publisher.send("again", "before")
    publisher.deleteTopic("again")
    publisher.createTopic("again")
    publisher.send("again", "after")
    assert subscriber.pull("again") == ["before", "after"]
    subscriber.close()
    publisher.close()


def test_an_empty_topic_is_refused(functions: None, server: str) -> None:
    publishing.registerPublisher(port=int(server))
    subscribing.registerSubscriber(port=int(server))
    calls: list[Callable[[], object]] = [
        lambda: publishing.createTopic(""),
        lambda: publishing.send("", "x"),
        lambda: publishing.deleteTopic(""),
        lambda: subscribing.subscribe(""),
        lambda: publishing._registered[0].createTopics(["a", ""]),
        lambda: publishing._registered[0].deleteTopics(["a", ""]),
    ]
    for call in calls:
        with pytest.raises(LineError, match="a topic must not be empty"):
            call()


def test_functions_before_registering_are_refused(functions: None) -> None:
    with pytest.raises(RuntimeError, match=r"call registerPublisher\(\) first"):
        publishing.send("a", "b")
    with pytest.raises(RuntimeError, match=r"call registerSubscriber\(\) first"):
        subscribing.pull("a")


def test_the_functions_create_send_pull_and_delete(functions: None, server: str) -> None:
    publishing.registerPublisher(port=int(server))
    subscribing.registerSubscriber(port=int(server))
    publishing.createTopic("functions")
    with pytest.raises(LineError, match="Topic 'functions' already exists"):
        publishing.createTopic("functions")
    subscribing.subscribe("functions")
    assert subscribing.pull("functions") == []
    for number in range(3):
        publishing.send("functions", f"message {number}")
    assert subscribing.pull("functions") == ["message 0", "message 1", "message 2"]
    assert subscribing.pull("functions") == [], "each message once"
    publishing.send("functions", "the last")
    publishing.deleteTopic("functions")
    with pytest.raises(LineError, match="there is no topic 'functions'"):
        publishing.send("functions", "too late")
    assert subscribing.pull("functions") == ["the last"], "what was acknowledged before is not lost"
    with pytest.raises(LineError, match="Topic 'functions' was deleted"):
        subscribing.pull("functions")


def test_the_functions_are_imported_from_publisher_and_subscriber(server: str) -> None:
    session = f"""
from publisher import registerPublisher, createTopic, send, deleteTopic
from subscriber import registerSubscriber, subscribe, pull

registerPublisher(port={server})
createTopic("imported")
registerSubscriber(port={server})
subscribe("imported")
send("imported", "Hello, world!")
print(pull("imported"))
deleteTopic("imported")
"""
    done = subprocess.run(
        [sys.executable, "-c", session],
        cwd=CLASSIC / "distributed",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "['Hello, world!']\n", "")


def test_registering_again_closes_the_connection_before(functions: None, server: str) -> None:
    publishing.registerPublisher(port=int(server))
    first = publishing._registered[0]
    publishing.registerPublisher(port=int(server))
    assert publishing._registered != [first]
    with pytest.raises(LineError):
        first.createTopic("closed")


def test_every_subscriber_gets_every_message_of_many_publishers(server: str) -> None:
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


@pytest.mark.parametrize("topic", ["long-" + "x" * 1_000, "größe", "with space", "tab\there"])
def test_topics_can_have_any_length_and_characters(functions: None, server: str, topic: str) -> None:
    publishing.registerPublisher(port=int(server))
    subscribing.registerSubscriber(port=int(server))
    publishing.createTopic(topic)
    subscribing.subscribe(topic)
    publishing.send(topic, "x" * 1_000_000)
    assert subscribing.pull(topic) == ["x" * 1_000_000]
    publishing.deleteTopic(topic)


def test_a_message_that_is_too_long_is_refused(functions: None, server: str) -> None:
    publishing.registerPublisher(port=int(server))
    publishing.createTopic("too-long")
    with pytest.raises(LineError, match=r"the payload exceeds \d+ bytes"):
        publishing.send("too-long", "x" * (16 * 1024 * 1024 + 1))


def test_every_component_is_explained_in_the_code() -> None:
    for file in (CLASSIC / "distributed").glob("*.py"):
        tree = ast.parse(file.read_text())
        named = (ast.FunctionDef, ast.ClassDef)
        for node in [tree, *(node for node in ast.walk(tree) if isinstance(node, named))]:
            name = getattr(node, "name", "")
            if not name.startswith("_"):
                assert ast.get_docstring(node), f"{file.name}: {name}"


@pytest.mark.parametrize(("name", "unit"), [("createTopic", "topics"), ("send", "messages")])
def test_a_benchmark_measures_several_clients(start: Start, server: str, name: str, unit: str) -> None:
    arguments = ("--port", server, "--clients", "2", "--count", "600")
    code, printed, errors = start(f"distributed/benchmark_{name}.py", *arguments).end()
    assert (code, errors) == (0, "")
    assert f"{unit}/s" in printed
    for how in ("one at a time", "in batches"):
        for client, count in (("0", "600"), ("1", "600"), ("all", "1,200")):
            assert re.search(rf"{how}\W+{client}\W+{count}\W+[\d.]+\W+[\d,]+", printed)


def test_a_benchmark_leaves_no_topics_behind(start: Start, tmp_path: Path) -> None:
    program = start("distributed/server.py", "--port", "0", "--data", str(tmp_path / "data"))
    port = program.line().rstrip().rpartition(":")[2]
    for name in ("createTopic", "send"):
        arguments = ("--port", port, "--clients", "1", "--count", "10")
        assert start(f"distributed/benchmark_{name}.py", *arguments).end()[0] == 0
    publisher = Publisher(port=int(port))
    assert publisher._client.topics() == []
    publisher.close()


@pytest.mark.parametrize("name", ["createTopic", "send"])
def test_a_benchmark_without_a_server_fails(start: Start, name: str) -> None:
    program = start(f"distributed/benchmark_{name}.py", "--port", "1", "--clients", "2", "--count", "10")
    code, _, errors = program.end()
    assert code == 1
    assert re.fullmatch(
        rf"benchmark_{name}\.py: client \d: cannot reach the server at localhost:1: Connection refused\n",
        errors,
    )

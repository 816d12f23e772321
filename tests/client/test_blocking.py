"""The blocking client, against a real broker."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from pyrite.client import BlockingClient, ClientError, ConnectError, RequestError, Topic

from .conftest import Durable, free_port


def test_published_messages_arrive_in_order(url: str, topic: str) -> None:
    with BlockingClient(url) as client, client.subscribe(f"{topic}/#", qos=1) as messages:
        assert client.connected
        client.publish(f"{topic}/a", b"1", qos=1)
        client.publish(f"{topic}/a", b"2", qos=2)
        client.publish_many([(f"{topic}/b", b"%d" % number) for number in range(3, 1_000)], qos=1)
        received = []
        for message in messages:
            received.append(int(message.payload))
            if len(received) == 999:
                break
    assert received == list(range(1, 1_000))
    assert not client.connected


def test_get_raises_timeout_error_without_a_message(url: str, topic: str) -> None:
    with BlockingClient(url) as client, client.subscribe(topic) as messages:
        with pytest.raises(TimeoutError):
            messages.get(0.05)
        client.publish(topic, b"x")
        assert messages.get(10).payload == b"x"


def test_calls_time_out_while_the_broker_is_down(durable: Durable) -> None:
    with BlockingClient(durable.url) as client:
        durable.kill()
        with pytest.raises(TimeoutError):
            client.publish("a", b"", qos=1, timeout=0.2)
        durable.start()
        client.publish("a", b"back", qos=1)


def test_messages_not_processed_are_delivered_again_to_the_session(url: str, topic: str) -> None:
    with BlockingClient(url, client_id=topic, session_expiry=60) as client:
        messages = client.subscribe(topic, qos=1)
        client.publish_many([(topic, b"%d" % number) for number in range(300)], qos=1)
        assert [int(messages.get(10).payload) for _ in range(150)] == list(range(150))
    with BlockingClient(url, client_id=topic) as client:
        messages = client.subscribe(topic, qos=1)
        first = int(messages.get(10).payload)
        assert 0 < first <= 150
        assert [int(messages.get(10).payload) for _ in range(first + 1, 300)] == list(range(first + 1, 300))


def test_an_iterator_in_another_thread_ends_when_the_client_is_closed(url: str, topic: str) -> None:
    received: list[bytes] = []
    with BlockingClient(url) as client:
        messages = client.subscribe(topic)
        first = threading.Event()

        def read() -> None:
            for message in messages:
                received.append(message.payload)
                first.set()

        reader = threading.Thread(target=read)
        reader.start()
        client.publish(topic, b"x")
        assert first.wait(10)
    reader.join(10)
    assert not reader.is_alive()
    assert received == [b"x"]


INTERRUPTED = """
import sys, threading
from pyrite.client import BlockingClient

try:
    with BlockingClient(sys.argv[1]) as client:
        messages = client.subscribe(sys.argv[2])
        print("ready", flush=True)
        next(messages)
except KeyboardInterrupt:
    print(client.connected, threading.active_count())
"""


def test_ctrl_c_closes_the_client_cleanly(url: str, topic: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, url, topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGINT)
        output, errors = program.communicate(timeout=20)
    assert (output, errors, program.returncode) == ("False 1\n", "", 0)


OFTEN_INTERRUPTED = """
import random, signal, sys, time
from pyrite.client import BlockingClient

def interrupt(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
with BlockingClient(sys.argv[1]) as client:
    for _ in range(300):
        end = time.monotonic() + 0.1
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.002))
            while time.monotonic() < end:
                client.publish(sys.argv[2], b"")
        except KeyboardInterrupt:
            pass
        client.publish(sys.argv[2], b"", qos=1)
print("alive")
"""


def test_a_client_still_works_after_interrupts_at_any_moment(url: str, topic: str) -> None:
    words = [sys.executable, "-c", OFTEN_INTERRUPTED, url, topic]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout == "alive\n", done.stderr


def test_topics_and_consumers_work(durable: Durable) -> None:
    with BlockingClient(durable.url) as client:
        client.create_topic("a/b")
        assert client.topics("a/#") == [Topic("a/b")]
        client.delete_topic("a/b")
        assert client.topics("a/#") == []
        client.publish_many([("jobs", b"%d" % number) for number in range(10)], qos=1)
        consumer = client.consumer("workers", "jobs")
        pulled = consumer.pull(10)
        assert [int(message.payload) for message in pulled] == list(range(10))
        consumer.ack(pulled)
        assert consumer.pull() == []
        consumer.delete()
        with pytest.raises(RequestError):
            consumer.pull()


def test_missing_broker_and_missing_connection_raise_errors(url: str) -> None:
    with pytest.raises(ConnectError, match="cannot connect"):
        BlockingClient(f"mqtt://127.0.0.1:{free_port()}").connect()
    client = BlockingClient(url)
    with pytest.raises(ClientError, match="not connected"):
        client.publish("a", b"")
    client.connect()
    client.close()
    client.close()
    with pytest.raises(ClientError, match="not connected"):
        client.publish("a", b"")
    assert not [thread for thread in threading.enumerate() if thread.name == "pyrite client"]

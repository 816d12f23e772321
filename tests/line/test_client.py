"""The blocking client of the line protocol, against a real broker, over TCP and UDP."""

from __future__ import annotations

import queue
import signal
import socket
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from pyrite.client.line import LineClient, LineError
from tests.support.process import BrokerProcess

BOTH = pytest.mark.parametrize("udp", [False, True], ids=["tcp", "udp"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(
        "--data", str(data), "--listen=line://127.0.0.1:0", "--listen=udp://127.0.0.1:0"
    ) as one:
        yield one


def client(broker: BrokerProcess, udp: bool = False, timeout: float = 10) -> LineClient:
    return LineClient("127.0.0.1", broker.port(1 if udp else 0), udp, timeout)


@BOTH
@pytest.mark.parametrize("payload", [b"", b"hello", b" \n two lines \r\n", bytes(range(256)) * 100])
def test_a_message_arrives(broker: BrokerProcess, udp: bool, payload: bytes) -> None:
    with client(broker, udp) as reader, client(broker, udp) as writer:
        reader.subscribe("a topic/+")
        writer.publish("a topic/50%", payload)
        message = next(reader.messages(10))
        assert (message.topic, message.payload, message.retain) == ("a topic/50%", payload, False)


@BOTH
def test_messages_come_once_and_in_order(broker: BrokerProcess, udp: bool) -> None:
    with client(broker, udp) as reader, client(broker, udp) as writer:
        reader.subscribe("order")
        for number in range(200):
            writer.publish("order", b"%d" % number)
        got = [message.payload for message in islice(reader.messages(10), 200)]
        assert got == [b"%d" % number for number in range(200)]


def test_a_message_of_sixteen_mebibytes_arrives(broker: BrokerProcess) -> None:
    payload = bytes(16 * 1024 * 1024)
    with client(broker) as reader, client(broker) as writer:
        reader.subscribe("large")
        writer.publish("large", payload)
        assert next(reader.messages(10)).payload == payload
        with pytest.raises(LineError, match="exceeds 16777216 bytes"):
            writer.publish("large", payload + b"x")


def test_a_message_too_large_for_a_datagram_is_refused(broker: BrokerProcess) -> None:
    with client(broker, udp=True) as writer, pytest.raises(LineError, match="do not fit into a datagram"):
        writer.publish("large", bytes(66_000))


@BOTH
def test_the_other_commands_work(broker: BrokerProcess, udp: bool) -> None:
    where = f"{'udp' if udp else 'tcp'}/topics"
    with client(broker, udp) as one:
        assert not one.connect(f"{where}-client", ttl=60)
        one.create(f"{where}/a")
        one.publish(f"{where}/b", b"kept %", retain=True)
        assert one.topics(f"{where}/#") == [(f"{where}/a", None), (f"{where}/b", b"kept %")]
        one.delete(f"{where}/a")
        with pytest.raises(LineError, match="there is no topic") as refused:
            one.delete(f"{where}/a")
        assert refused.value.code == "no-topic"
        one.register(where, f"{where}/#")
        assert [message.payload for message in one.pull(where, 10)] == [b"kept %"]
        assert one.pull(where, 10) == []
        one.subscribe(f"{where}/#", ack=True)
        assert next(one.messages(10)).retain
        one.unsubscribe(f"{where}/#")
        one.ping()


def test_a_session_is_resumed(broker: BrokerProcess) -> None:
    with client(broker) as one:
        one.connect("comes-back", ttl=60)
        one.subscribe("missed", ack=True)
    with client(broker) as other:
        other.publish("missed", b"x")
    with client(broker) as one:
        assert one.connect("comes-back", resume=True, ttl=60)
        assert next(one.messages(10)).payload == b"x"


@pytest.mark.parametrize("client_id", ["", "named"])
def test_a_forgotten_udp_client_renews_its_subscriptions(tmp_path: Path, client_id: str) -> None:
    config = tmp_path / "pyrite.toml"
    config.write_text("[line]\nudp_timeout = 0.1\n")
    listeners = ("--listen=line://127.0.0.1:0", "--listen=udp://127.0.0.1:0")
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    with BrokerProcess("--ephemeral", "--config", str(config), *listeners) as broker:
        port = broker.port(1)
        with (
            LineClient("127.0.0.1", port, udp=True, ping_interval=3, notice=told.put) as reader,
            client(broker) as writer,
        ):
            if client_id:
                reader.connect(client_id, ttl=60)
            for topic in ("a b", "c", "d"):
                reader.subscribe(topic, ack=bool(client_id))
            reader.unsubscribe("d")
            assert told.get(timeout=20) == f"127.0.0.1:{port} had forgotten this client: subscribed again"
            received: set[str] = set()
            while len(received) < 2:  # it may be forgotten once more, with what was on its way
                for topic in ("d", "c", "a b"):
                    writer.publish(topic, b"x")
                received |= {message.topic for message in islice(reader.messages(1), 2)}
            assert received == {"a b", "c"}
            if client_id:
                assert reader.connect(client_id, resume=True, ttl=60), "it has its name again, too"


def test_an_empty_topic_is_reported(broker: BrokerProcess) -> None:
    with client(broker) as one:
        with pytest.raises(LineError, match="a topic must not be empty"):
            one.publish("", b"x")
        with pytest.raises(LineError, match="a topic must not be empty"):
            one.subscribe("")


@BOTH
def test_a_broker_that_does_not_run_is_reported(udp: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        if udp:
            with LineClient("127.0.0.1", port, udp, timeout=1) as lonely, pytest.raises(TimeoutError):
                lonely.publish("a", b"x")
        else:
            with pytest.raises(ConnectionRefusedError):
                LineClient("127.0.0.1", port)


def test_the_end_of_the_broker_is_reported() -> None:
    with BrokerProcess("--ephemeral", "--listen=line://127.0.0.1:0") as broker, client(broker) as one:
        one.subscribe("a")
        broker.stop(signal.SIGKILL)
        assert list(one.messages(10)) == []
        with pytest.raises(LineError):
            one.publish("a", b"x")

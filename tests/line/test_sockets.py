"""The line protocol on real sockets: TCP and UDP beside MQTT, as seen by nc."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import BrokerProcess

CONFIG = "[line]\nping_interval = 0.3\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    listeners = [f"--listen={scheme}://127.0.0.1:0" for scheme in ("line", "udp", "mqtt")]
    with BrokerProcess(*listeners, "--data", str(folder / "data")) as process:
        yield process


def dial(broker: BrokerProcess) -> socket.socket:
    connected = socket.create_connection(("127.0.0.1", broker.port(0)), timeout=10)
    connected.settimeout(10)
    return connected


def read(connected: socket.socket, count: int) -> bytes:
    """Read exactly this many bytes."""
    data = b""
    while len(data) < count:
        piece = connected.recv(count - len(data))
        assert piece, f"closed after {data!r}"
        data += piece
    return data


def expect(connected: socket.socket, expected: bytes) -> None:
    assert read(connected, len(expected)) == expected


def test_messages_travel_over_tcp(broker: BrokerProcess) -> None:
    with dial(broker) as reader, dial(broker) as writer:
        reader.sendall(b"Subscribe tcp\n")
        expect(reader, b"SubAck tcp\n")
        payload = bytes(range(256)) * 65_536  # 16 MiB
        writer.sendall(b"Publish tcp %d\n%s\nPublish tcp 0\n\n" % (len(payload), payload))
        expect(writer, b"PubAck tcp\nPubAck tcp\n")
        expect(reader, b"Message tcp %d\n%s\nMessage tcp 0\n\n" % (len(payload), payload))


def test_many_messages_arrive_in_order(broker: BrokerProcess) -> None:
    with dial(broker) as reader, dial(broker) as writer:
        reader.sendall(b"Subscribe many\n")
        expect(reader, b"SubAck many\n")
        frames = [b"Publish many 5 noack\n%05d\n" % number for number in range(20_000)]
        writer.sendall(b"".join(frames))
        expect(reader, b"".join(b"Message many 5 noack\n%05d\n" % number for number in range(20_000)))


def test_a_client_that_closes_its_half_is_answered_first(broker: BrokerProcess) -> None:
    """`printf ... | nc -N` does so."""
    with dial(broker) as client:
        client.sendall(b"Publish half 5\nhello\n")
        client.shutdown(socket.SHUT_WR)
        expect(client, b"PubAck half\n")
        assert client.recv(1) == b""


def test_udp_and_tcp_clients_exchange_messages(broker: BrokerProcess) -> None:
    with dial(broker) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.settimeout(10)
        udp.connect(("127.0.0.1", broker.port(1)))
        udp.send(b"Subscribe both\n")
        ping = udp.recv(65_536)
        assert ping.startswith(b"Ping ")
        udp.send(ping.replace(b"Ping", b"Pong"))
        assert udp.recv(65_536) == b"SubAck both\n"
        tcp.sendall(b"Publish both 5\nhello\n")
        expect(tcp, b"PubAck both\n")
        message = udp.recv(65_536)
        assert message.startswith(b"Message both 5 n=")
        assert message.endswith(b"\nhello\n")
        udp.send(b"Ack " + message.partition(b"n=")[2].partition(b"\n")[0])
        tcp.sendall(b"Subscribe back\n")
        expect(tcp, b"SubAck back\n")
        udp.send(b"Publish back 2 id=1\nhi\n")
        assert udp.recv(65_536) == b"PubAck back id=1\n"
        expect(tcp, b"Message back 2\nhi\n")


@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto-clients is not installed")
def test_third_party_mqtt_clients_use_the_same_broker(broker: BrokerProcess) -> None:
    port = str(broker.port(2))
    with dial(broker) as writer:
        writer.sendall(b"Publish shared/a 4 retain\nkept\n")
        expect(writer, b"PubAck shared/a\n")
        got = subprocess.run(
            ["mosquitto_sub", "-p", port, "-t", "shared/#", "-C", "1", "-v", "-W", "10"],
            capture_output=True,
            text=True,
            timeout=20,
        )
        assert got.stdout == "shared/a kept\n"
        writer.sendall(b"Subscribe from/mqtt\n")
        expect(writer, b"SubAck from/mqtt\n")
        subprocess.run(
            ["mosquitto_pub", "-p", port, "-t", "from/mqtt", "-m", "hi", "-q", "1"], check=True, timeout=20
        )
        expect(writer, b"Message from/mqtt 2\nhi\n")


def test_a_silent_client_is_printed_and_closed(tmp_path: Path) -> None:
    config = tmp_path / "pyrite.toml"
    config.write_text(CONFIG)
    with (
        BrokerProcess("--ephemeral", "--config", str(config), "--listen=line://127.0.0.1:0") as broker,
        dial(broker) as silent,
    ):
        port = silent.getsockname()[1]
        expect(silent, b"Ping\n" * 3 + b"Error silent no Pong received\n")
        assert silent.recv(1) == b""
        assert broker.stop() == 0
        assert sum(f"127.0.0.1:{port} has not answered Ping" in line for line in broker.log) == 3


def test_the_broker_ends_cleanly(tmp_path: Path) -> None:
    listeners = [f"--listen={scheme}://127.0.0.1:0" for scheme in ("line", "udp")]
    with BrokerProcess("--data", str(tmp_path / "data"), *listeners) as broker, dial(broker) as client:
        client.sendall(b"Ping\n")
        expect(client, b"Pong\n")
        assert broker.stop() == 0
        expect(client, b"Error ended the broker is shutting down\n")
        assert client.recv(1) == b""


def test_a_port_in_use_is_reported(broker: BrokerProcess) -> None:
    url = f"udp://127.0.0.1:{broker.port(1)}"
    with pytest.raises(RuntimeError, match=f"cannot listen on {url}"):
        BrokerProcess("--ephemeral", "--listen", url)

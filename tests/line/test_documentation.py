"""The bytes in docs/protocol.md are the bytes on the wire."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.line.test_sockets import dial, expect
from tests.support.process import BrokerProcess

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol.md"
COMMANDS = """Connect Publish Subscribe Unsubscribe Message Ack SubAck PubAck Ping Pong List Create Delete
    Register Unregister Pull Disconnect Error"""


class Step(NamedTuple):
    sent: bool
    data: bytes


def steps(text: str) -> list[Step]:
    """Return the byte examples of a text, each with the readable text beside or below it."""
    found = re.findall(r"^([<>]) ((?:[0-9a-f]{2} )*[0-9a-f]{2})\s+(\S.*␊)$", text, re.MULTILINE)
    for _, code, beside in found:
        assert bytes.fromhex(code).decode() == beside.replace("␊", "\n")
    return [Step(way == ">", bytes.fromhex(code)) for way, code, _ in found]


def conversations() -> tuple[list[Step], list[Step]]:
    """Return the conversations over TCP and over UDP."""
    before, _, rest = DOCUMENT.read_text().partition("\n## Over UDP\n")
    over_udp, _, after = rest.partition("\n## Timing\n")
    *over_tcp, bye, last = steps(before)
    return [*over_tcp, *steps(after), bye, last], steps(over_udp)


@pytest.mark.parametrize("conversation", conversations(), ids=["tcp", "udp"])
def test_every_command_has_an_example_with_bytes(conversation: list[Step]) -> None:
    said = {step.data.split()[0].decode() for step in conversation}
    assert said == {*COMMANDS.split()}


def test_the_tcp_conversation_has_these_bytes(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with BrokerProcess("--listen=line://127.0.0.1:0", "--data", data) as broker, dial(broker) as client:
        for sent, data_ in conversations()[0]:
            if sent:
                client.sendall(data_)
            else:
                expect(client, data_)
        assert client.recv(1) == b""


def test_the_udp_conversation_has_these_bytes(tmp_path: Path) -> None:
    with (
        BrokerProcess("--listen=udp://127.0.0.1:0", "--data", str(tmp_path / "data")) as broker,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client,
    ):
        client.settimeout(10)
        client.connect(("127.0.0.1", broker.port(0)))
        word = written = b""
        for sent, data in conversations()[1]:
            if sent:
                client.send(data.replace(written, word) if written else data)
            elif data.startswith(b"Ping "):
                written, word = data.split()[1], client.recv(65_536).split()[1]
            else:
                assert client.recv(65_536) == data

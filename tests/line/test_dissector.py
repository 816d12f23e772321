"""The Wireshark dissector reads captures of a real conversation as commands."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from tests.support.process import BrokerProcess

SCRIPT = Path(__file__).parents[2] / "tools" / "pyrite_line.lua"
TSHARK = shutil.which("tshark")
CLIENT = 40_000
FIELDS = ("command", "topic", "number", "length", "payload", "error")

pytestmark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")


def packet(protocol: int, source: int, target: int, sequence: int, data: bytes) -> bytes:
    """Wrap bytes as an IPv4 packet of TCP or UDP on loopback."""
    if protocol == socket.IPPROTO_TCP:
        head = struct.pack(">HHIIBBHHH", source, target, sequence, 1, 5 << 4, 0x18, 65_535, 0, 0)
    else:
        head = struct.pack(">HHHH", source, target, 8 + len(data), 0)
    size = 20 + len(head) + len(data)
    loopback = bytes([127, 0, 0, 1])
    return (
        struct.pack(">BBHHHBBH4s4s", 0x45, 0, size, 0, 0, 64, protocol, 0, loopback, loopback) + head + data
    )


def capture(path: Path, protocol: int, port: int, spoken: list[tuple[str, bytes]]) -> None:
    """Write a capture file of what both sides sent; `>` marks the client."""
    sequences = {">": 1, "<": 1}
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, 101))
        for number, (side, data) in enumerate(spoken):
            ports = (CLIENT, port) if side == ">" else (port, CLIENT)
            raw = packet(protocol, *ports, sequences[side], data)
            sequences[side] += len(data)
            file.write(struct.pack("<IIII", number, 0, len(raw), len(raw)) + raw)


def read(path: Path, *arguments: str) -> list[list[list[str]]]:
    """Return, for each packet in which a frame ends, the values of each field."""
    assert TSHARK is not None
    chosen = [word for field in FIELDS for word in ("-e", f"pyrite_line.{field}")]
    done = subprocess.run(
        [TSHARK, "-X", f"lua_script:{SCRIPT}", "-r", str(path), "-Y", "pyrite_line", "-T", "fields",
         "-E", "separator=|", "-E", "aggregator=;", *chosen, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"HOME": str(path.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Lua" not in done.stderr, done.stderr
    return [[value.split(";") for value in row.split("|")] for row in done.stdout.splitlines()]


def test_a_conversation_over_tcp_is_dissected(tmp_path: Path) -> None:
    """The answers of a real broker, in arbitrary pieces."""
    with (
        BrokerProcess("--ephemeral", "--listen=line://127.0.0.1:0") as broker,
        socket.create_connection(("127.0.0.1", broker.port()), timeout=10) as client,
    ):
        client.settimeout(10)
        asked = b"Subscribe a%20b\nPublish a%20b 8 retain\nx\nPing\ny\nList\nDance\n"
        client.sendall(asked)
        answers = b""
        while b"Error" not in answers or not answers.endswith(b"\n"):
            answers += client.recv(65_536)
    path = tmp_path / "tcp.pcap"
    pieces = [(">", asked[:30]), (">", asked[30:50]), (">", asked[50:])]
    capture(path, socket.IPPROTO_TCP, 1373, [*pieces, ("<", answers[:40]), ("<", answers[40:])])
    rows = read(path)
    commands = [name for row in rows for name in row[0]]
    assert commands[:4] == ["Subscribe", "Publish", "List", "Dance"]
    assert sorted(commands[4:]) == ["Error", "List", "Message", "PubAck", "SubAck"]
    assert {name for row in rows for name in row[1] if name} == {"a b"}
    assert next(value for row in rows for value in row[3] if value) == "8"
    payload = b"x\nPing\ny".hex()
    assert [value for row in rows for value in row[4] if value][:1] == [payload]
    assert [value for row in rows for value in row[5] if value] == ["unknown-command"]


def test_datagrams_are_dissected(tmp_path: Path) -> None:
    path = tmp_path / "udp.pcap"
    spoken = [
        (">", b"Subscribe news"),
        ("<", b"Ping q3Zk1A\n"),
        (">", b"Pong q3Zk1A\n"),
        ("<", b"SubAck news\n"),
        ("<", b"Message news 5 n=65536\nhello\n"),
        (">", b"Ack 65536\n"),
    ]
    capture(path, socket.IPPROTO_UDP, 1234, spoken)
    rows = read(path)
    assert [row[0] for row in rows] == [["Subscribe"], ["Ping"], ["Pong"], ["SubAck"], ["Message"], ["Ack"]]
    assert rows[4][1:5] == [["news"], ["65536"], ["5"], [b"hello".hex()]]
    assert rows[5][2] == ["65536"]


def test_other_ports_can_be_dissected(tmp_path: Path) -> None:
    path = tmp_path / "other.pcap"
    capture(path, socket.IPPROTO_TCP, 5_555, [(">", b"Ping\n"), ("<", b"Pong\n")])
    assert read(path) == []
    assert [row[0] for row in read(path, "-d", "tcp.port==5555,pyrite_line")] == [["Ping"], ["Pong"]]

"""Flight under hostile clients: nothing is decoded before it is accepted, or without permission."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from pyrite.access.users import User, hash_password, write_users
from pyrite.client.log import FlightLog
from pyrite.flight.inspection import MAX_MESSAGE, InputRefused, Inspection, check_metadata
from pyrite.storage.query import Query, QueryError
from tests.support.children import children
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until

CONFIG = """
[access]
users = "users"

[[access.rule]]
users = ["ann"]
publish = ["sink"]
pull = ["#"]

[[stream]]
name = "secret"
topics = ["secret/#"]

[[stream]]
name = "default"
"""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    write_users(folder / "users", [User(name, hash_password(f"word-of-{name}")) for name in ("ann", "bob")])
    (folder / "pyrite.toml").write_text(CONFIG)
    listen = ("--listen=mqtt://127.0.0.1:0", "--listen=flight://127.0.0.1:0")
    with BrokerProcess("--config=pyrite.toml", *listen, "--data=data", cwd=folder) as process:
        yield process
        assert not [line for line in process.log if "internal error" in line or "Traceback" in line]


def client_of(broker: BrokerProcess, name: str) -> tuple[flight.FlightClient, flight.FlightCallOptions]:
    client = flight.connect(broker.urls[1].replace("flight", "grpc", 1))
    return client, flight.FlightCallOptions(headers=headers_of(name))


def headers_of(name: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Basic " + base64.b64encode(f"{name}:word-of-{name}".encode()))]


def resident(process: int) -> int:
    """Return the peak memory of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def bomb(rows: int) -> pa.RecordBatch:
    payload = pa.array([b"\0" * rows], pa.binary())
    return pa.record_batch({"topic": pa.array(["sink"], pa.string()), "payload": payload})


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_batches_are_refused_without_decompression(broker: BrokerProcess, codec: str) -> None:
    client, rights = client_of(broker, "ann")
    list(client.list_flights(options=rights))
    (process,) = children(broker)
    before = resident(process)
    batch = bomb(200 * 1024 * 1024)
    options = flight.FlightCallOptions(
        headers=headers_of("ann"), write_options=pa.ipc.IpcWriteOptions(compression=codec)
    )
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"sink": "s", "part": "p"}).encode())
    writer, _ = client.do_put(descriptor, batch.schema, options)

    def send() -> None:
        writer.write_batch(batch)
        writer.close()

    with pytest.raises((flight.FlightError, pa.ArrowException, OSError)):
        send()
    client.close()
    assert resident(process) - before < 100 * 1024 * 1024
    said = "compressed buffers: send them without compression"
    wait_until(lambda: any(said in line for line in broker.log), "a line in the log")
    broker.log.clear()
    assert children(broker) == [process]
    other, given = client_of(broker, "ann")
    assert len(list(other.list_flights(options=given))) == 2
    other.close()


def test_a_writer_of_compressed_batches_is_refused_without_retries(broker: BrokerProcess) -> None:
    with FlightLog(broker.urls[1], username="ann", password="word-of-ann", retry=600) as log:
        compressed = pa.ipc.IpcWriteOptions(compression="zstd")
        log._options = flight.FlightCallOptions(headers=headers_of("ann"), write_options=compressed)
        with pytest.raises(
            QueryError, match="the broker refused the data: record batches with compressed buffers"
        ):
            log.stage("sink", "part", bomb(1).schema, [bomb(1_000)])
    broker.log.clear()


def test_nothing_is_decoded_or_listed_without_permission(broker: BrokerProcess) -> None:
    client, given = client_of(broker, "bob")
    wrong = b"{ this is no JSON"
    calls: dict[str, Callable[[], object]] = {
        "info": lambda: client.get_flight_info(flight.FlightDescriptor.for_command(wrong), given),
        "get": lambda: client.do_get(flight.Ticket(wrong), given).read_all(),
    }
    for name in ("bounds", "offset", "advance", "commit", "abort"):
        calls[name] = partial(_act, client, name, wrong, given)
    assert list(client.list_flights(options=given)) == []
    for name, call in calls.items():
        with pytest.raises(flight.FlightUnauthorizedError, match="not authorized"):
            call()
        assert name
    rows = pa.record_batch({"wrong": pa.array([1])})
    writer, reader = client.do_put(flight.FlightDescriptor.for_command(wrong), rows.schema, given)

    def stage() -> None:
        writer.write_batch(rows)
        writer.done_writing()
        reader.read()
        writer.close()

    with pytest.raises(flight.FlightUnauthorizedError, match="not authorized: publish"):
        stage()
    client.close()


def _act(
    client: flight.FlightClient, name: str, body: bytes, given: flight.FlightCallOptions
) -> list[flight.Result]:
    return list(client.do_action(flight.Action(name, body), given))


def test_concurrent_reads_of_a_user_are_limited(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text("[quotas.default]\nconcurrent_reads = 2\n")
    listen = ("--listen=mqtt://127.0.0.1:0", "--listen=flight://127.0.0.1:0")
    with (
        BrokerProcess("--config=pyrite.toml", *listen, "--data=data", cwd=tmp_path) as process,
        FlightLog(process.urls[1]) as log,
    ):
        for _ in range(6):  # each ends, and so there is room for the next
            assert log.table(Query(stop=log.bounds("default").end)).num_rows == 0


def test_a_read_beyond_the_limit_is_refused_until_a_client_disappears(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text("[quotas.default]\nconcurrent_reads = 2\n")
    rows = pa.record_batch({"topic": ["a"] * 40, "payload": pa.array([bytes(100_000)] * 40, pa.binary())})
    with BrokerProcess(
        "--config=pyrite.toml", "--listen=flight://127.0.0.1:0", "--data=data", cwd=tmp_path
    ) as process:
        with FlightLog(process.urls[0]) as log:
            for number in range(20):  # more than the sockets on the way hold, so reads do not end
                assert log.commit("s", number, log.stage("s", "p", rows.schema, [rows]).parts)
        readers = [FlightLog(process.urls[0], retry=0) for _ in range(2)]
        reads: list[Any] = [one.read(Query()) for one in readers]
        assert all(next(one).num_rows for one in reads)
        with (
            FlightLog(process.urls[0], retry=0) as third,
            pytest.raises(ConnectionError, match=r"concurrent reads of .*: 2 in use, at most 2"),
        ):
            next(third.read(Query()))
        reads[0].close()
        readers[0].close()
        with FlightLog(process.urls[0], retry=60) as third:
            assert next(third.read(Query())).num_rows
        reads[1].close()
        readers[1].close()


# The bytes


def frame(data: bytes, stream: int = 1, flags: int = 0) -> bytes:
    return len(data).to_bytes(3, "big") + bytes([0, flags]) + stream.to_bytes(4, "big") + data


def message(data: bytes) -> bytes:
    return b"\0" + len(data).to_bytes(4, "big") + data


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def flight_data(batch: pa.RecordBatch, codec: str | None) -> bytes:
    found = pa.ipc.read_message(batch.serialize() if codec is None else _written(batch, codec))
    header, body = found.metadata.to_pybytes(), found.body.to_pybytes()
    data: bytes = b"\x12" + varint(len(header)) + header + b"\xc2\x3e" + varint(len(body)) + body
    return data


def _written(batch: pa.RecordBatch, codec: str) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    return messages[1].serialize()


@pytest.mark.parametrize("step", [1, 7, 1_000_000])
def test_only_uncompressed_batches_are_accepted_however_they_are_cut(step: int) -> None:
    def feed(data: bytes) -> None:
        inspection = Inspection()
        data = PREFACE + data
        for at in range(0, len(data), step):
            inspection.feed(data[at : at + step])

    plain = message(flight_data(bomb(500), None))
    packed = message(flight_data(bomb(500), "zstd"))
    feed(frame(plain + plain) + frame(plain, 3) + frame(b"", 1, 1))
    halves = len(packed) // 3
    for data in (
        frame(packed),
        frame(packed[:halves]) + frame(plain, 3) + frame(packed[halves:]),
        frame(b"\x05" + packed + bytes(5), 1, 8),
    ):
        with pytest.raises(InputRefused, match="compressed buffers"):
            feed(data)
    with pytest.raises(InputRefused, match="compressed gRPC messages"):
        feed(frame(b"\x01" + plain[1:]))
    with pytest.raises(InputRefused, match="at most"):
        feed(frame(b"\0" + (MAX_MESSAGE + 1).to_bytes(4, "big")))
    with pytest.raises(InputRefused, match="malformed message"):
        feed(frame(message(b"\x12\xff\xff\xff\xff\x7f")))


def test_arbitrary_metadata_bytes_cause_no_crash() -> None:
    packed = _written(bomb(10), "lz4")
    header = pa.ipc.read_message(packed).metadata.to_pybytes()
    for at in range(len(header)):
        for value in (0, 0x7F, 0xFF):
            try:
                check_metadata(header[:at] + bytes([value]) + header[at + 1 :])
                check_metadata(header[:at])
            except InputRefused:
                pass

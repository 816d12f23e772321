"""The log over Arrow Flight, served by the Flight process of a real broker."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars
import pyarrow as pa
import pyarrow.flight as flight
import pytest
import trustme

from pyrite.client import BlockingClient, read_log
from pyrite.client.log import FlightLog
from pyrite.storage.query import SCHEMA, DataLoss, Query, QueryError
from tests.server.test_authenticator import PLUGIN
from tests.support.children import assert_it_ends_with_its_broker, children
from tests.support.process import BrokerProcess

LISTEN = ("--listen=mqtt://127.0.0.1:0", "--listen=flight://127.0.0.1:0")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("flight")
    with BrokerProcess(*LISTEN, "--data", str(folder / "data")) as process:
        publish(process, [("sensors/1", f"{number}") for number in range(60)])
        publish(process, [("other", f"{number:05000}") for number in range(40)])  # more than a tail holds
        yield process


@pytest.fixture
def log(broker: BrokerProcess) -> Iterator[FlightLog]:
    with FlightLog(broker.urls[1]) as log:
        yield log


def publish(broker: BrokerProcess, messages: list[tuple[str, str]]) -> None:
    with BlockingClient(broker.urls[0]) as client:
        for topic, payload in messages:
            client.publish(topic, payload.encode(), qos=1)


def rows(count: int, topic: str = "sink", start: int = 0) -> pa.RecordBatch:
    payloads = pa.array([b"%d" % number for number in range(start, start + count)], pa.binary())
    return pa.record_batch({"topic": pa.array([topic] * count, pa.string()), "payload": payloads})


# Reading


def test_streams_are_listed_with_their_bounds(log: FlightLog) -> None:
    assert log.streams() == ["default"]
    first, end = log.bounds("default")
    assert first == 0
    assert end >= 100


def test_other_flight_clients_can_list_and_read(broker: BrokerProcess) -> None:
    client = flight.connect(broker.urls[1].replace("flight", "grpc", 1))
    (info,) = client.list_flights()
    assert info.descriptor.path == [b"default"]
    assert info.schema == SCHEMA
    bounds = json.loads(info.app_metadata)
    assert info.total_records == bounds["end"] - bounds["first"]
    info = client.get_flight_info(flight.FlightDescriptor.for_path("default"))
    tables = [client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
    assert sum(table.num_rows for table in tables) >= 100
    assert {action.type for action in client.list_actions()} == {
        "bounds",
        "offset",
        "advance",
        "check",
        "progress",
        "commit",
        "abort",
    }
    client.close()


def test_queries_select_offsets_times_and_topics(log: FlightLog) -> None:
    end = log.bounds("default").end
    whole = log.table(Query(stop=end))
    assert whole.schema == SCHEMA
    assert whole.column("offset").to_pylist() == list(range(end))
    few = log.table(Query(start=10, stop=80, topics=("sensors/+",), columns=("payload", "topic")))
    assert few.column_names == ["payload", "topic"]
    assert few.column("payload").to_pylist() == [b"%d" % number for number in range(10, 60)]
    times = whole.column("timestamp").to_pylist()
    since = (times[30] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    late = log.table(Query(stop=end, since=since, columns=("offset",)))
    assert late.column("offset").to_pylist() == [at for at, one in enumerate(times) if one >= times[30]]


def test_a_query_is_split_into_parts_with_positions(log: FlightLog) -> None:
    end = log.bounds("default").end
    parts = log.split("default", 0, end, 4)
    assert 1 < len(parts) <= 4
    together = [log.table(Query(start=start, stop=stop)) for start, stop in parts]
    assert pa.concat_tables(together).column("offset").to_pylist() == list(range(end))
    assert log.advance("default", 5, 20, None) == 25
    assert 0 < log.advance("default", 0, None, 1) < end
    assert log.offset("default", "earliest") == 0
    assert log.offset("default", "17") == 17
    assert log.offset("default", "-1h") == 0


def test_one_line_reads_the_log(broker: BrokerProcess) -> None:
    table = read_log(broker.urls[1], topic="sensors/#", columns=["topic", "payload"], stop=100)
    assert table.num_rows == 60
    frame = table.to_pandas()
    assert list(frame.columns) == ["topic", "payload"]
    assert set(frame.topic) == {"sensors/1"}


def test_polars_reads_the_log(broker: BrokerProcess) -> None:
    table = read_log(broker.urls[1], topic="sensors/#", stop=100)
    frame = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame)
    assert frame.columns == SCHEMA.names
    assert frame.to_dicts() == table.to_pylist()
    newest = frame.group_by("topic").agg(polars.col("payload").last(), polars.len())
    assert newest.rows() == [("sensors/1", b"59", 60)]


@pytest.mark.parametrize("topic", ["s/#/x", "a#", "", ["sensors/1", "+a"]])
def test_an_invalid_filter_is_refused(broker: BrokerProcess, topic: str | list[str]) -> None:
    with pytest.raises(QueryError, match="invalid topic filter"):
        read_log(broker.urls[1], topic=topic)


def test_the_tail_is_visible_at_once(broker: BrokerProcess, log: FlightLog) -> None:
    log.bounds("default")
    with BlockingClient(broker.urls[0]) as client:
        for number in range(20):
            client.publish("tail", b"%d" % number, qos=1)
            end = log.bounds("default").end  # the acknowledged message is there, however soon one looks
            last = log.table(Query(start=end - 1, columns=("payload",)))
            assert last.column("payload").to_pylist() == [b"%d" % number]


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda log: log.bounds("none"), "there is no stream 'none'; there are: default"),
        (lambda log: log.table(Query("none")), "there is no stream 'none'"),
        (lambda log: log.offset("default", "soon"), "'soon' is not a position"),
        (lambda log: log.split("default", 0, 9, 0), "parts=0: expected a number from 1 to"),
        (lambda log: log._act("dance"), "unknown action 'dance'; expected bounds, offset"),
        (lambda log: log._act("bounds"), "expected stream, a text"),
        (lambda log: log._act("advance", stream="default", start="x"), "start='x': expected a number"),
        (lambda log: log.advance("default", 0, 0, None), "messages=0: expected a number from 1"),
        (lambda log: log.advance("default", 0, 10**30, None), "expected a number from 1"),
        (lambda log: log._act("check", topics="a"), "topics='a': expected a list of topic filters"),
        (lambda log: log._act("check", topics=["#a"]), "topics: invalid topic filter '#a'"),
        (lambda log: log._act("commit", sink="s"), "expected batch, a number"),
        (lambda log: log.commit("../s", 1, []), "sink '../s': expected up to 128 letters"),
        (lambda log: log.abort("../s"), "sink '../s': expected up to 128 letters"),
        (lambda log: log.commit("s", 1, ["../a"]), "part '../a': expected up to 128 letters"),
        (lambda log: log.commit("s", -1, []), "expected a batch from 0 to 9223372036854775807, not -1"),
        (lambda log: log._act("abort", sink="s", parts=[1]), "expected parts, a list of names"),
        (
            lambda log: log.stage("s", "p", rows(1).schema.remove(0), [rows(1).select([1])]),
            "column 'topic' is missing",
        ),
    ],
)
def test_invalid_queries_are_refused(log: FlightLog, ask: Callable[[FlightLog], object], text: str) -> None:
    with pytest.raises(QueryError) as caught:
        ask(log)
    assert text in str(caught.value)
    assert "gRPC" not in str(caught.value)


def test_invalid_queries_from_other_clients_are_refused(broker: BrokerProcess) -> None:
    client = flight.connect(broker.urls[1].replace("flight", "grpc", 1))
    before = len(broker.log)
    queries: list[dict[str, Any]] = [
        {"colour": 1},
        {"columns": ["x"]},
        {"columns": []},
        {"columns": 5},
        {"topics": ["s/#/x"]},
        {"topics": ["a#"]},
        {"topics": [""]},
        {"topics": [5]},
        {"topics": "a"},
        {"start": "x"},
        {"stop": None},
        {"since": 1.5},
        {"until": 10**30},
        {"stream": 5},
        {"lost": []},
    ]
    wrong = [b"", b"\xff", b"[1]", b"[" * 100_000, *(json.dumps(asked).encode() for asked in queries)]
    for ticket in wrong:
        with pytest.raises(flight.FlightServerError) as caught:
            client.do_get(flight.Ticket(ticket)).read_all()
        assert "internal error" not in str(caught.value)
    assert [line for line in broker.log[before:] if "rror" in line] == []
    with pytest.raises(flight.FlightServerError, match="expected a JSON object"):
        client.get_flight_info(flight.FlightDescriptor.for_command(b"x"))
    client.close()


def test_invalid_urls_are_refused() -> None:
    where = "flight://127.0.0.1"
    for url in ("mqtt://127.0.0.1", "flight://", f"{where}:x", f"{where}:0", f"{where}/a", f"{where}?a"):
        with pytest.raises(QueryError, match="expected flight://HOST:PORT or flights://HOST:PORT, not"):
            FlightLog(url)
    with pytest.raises(QueryError, match="must not contain a user name or password; pass them") as told:
        FlightLog("flight://ann:secret@127.0.0.1")
    assert "secret" not in str(told.value)
    with pytest.raises(QueryError, match="a password needs a user name"):
        FlightLog(where, password="x")
    with pytest.raises(QueryError, match="need a flights:// URL"):
        FlightLog(where, ca_file="ca.pem")
    with pytest.raises(QueryError, match="or a token"):
        FlightLog("flight://127.0.0.1", username="a", token="b")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"flight://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"{url}: no answer"):
            FlightLog(url, retry=0.2).streams()


# Writing


def test_staged_rows_are_published_by_a_commit(broker: BrokerProcess, log: FlightLog) -> None:
    with BlockingClient(broker.urls[0]) as client, client.subscribe("sink", qos=1) as messages:
        before = log.bounds("default").end
        staged = log.stage("one", "part", rows(0).schema, [rows(10), rows(5, start=10)])
        assert staged.rows == 15
        assert log.bounds("default").end == before
        assert log.commit("one", 0, staged.parts)
        assert [int(next(messages).payload) for _ in range(15)] == list(range(15))
    table = log.table(Query(start=before, topics=("sink",)))
    assert table.column("payload").to_pylist() == [b"%d" % number for number in range(15)]
    assert not log.commit("one", 0, log.stage("one", "part", rows(0).schema, [rows(15)]).parts)
    assert log.bounds("default").end == before + 15
    staged = log.stage("one", "gone", rows(0).schema, [rows(3)])
    log.abort("one", staged.parts)
    with pytest.raises(QueryError, match="was not staged"):
        log.commit("one", 1, staged.parts)


@pytest.mark.parametrize("topic", ["a/#", "/" * 128])
def test_an_invalid_topic_refuses_the_whole_part(log: FlightLog, topic: str) -> None:
    before = log.bounds("default").end
    with pytest.raises(QueryError, match="topic"):
        log.commit("two", 0, log.stage("two", "part", rows(0).schema, [rows(3), rows(1, topic)]).parts)
    assert log.bounds("default").end == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", "x" * 70_000),
        ("message_expiry", 2**40),
        ("message_expiry", -5),
        ("payload_format", 7),
        ("content_type", "x" * 70_000),
        ("user_properties", [{"key": None, "value": "1"}]),
    ],
)
def test_an_invalid_row_does_not_affect_others(
    broker: BrokerProcess, log: FlightLog, name: str, value: object
) -> None:
    column = pa.array([value], SCHEMA.field(name).type)
    good = rows(1, f"way/{name}")
    names = [one for one in good.schema.names if one != name]
    bad = pa.RecordBatch.from_arrays([*good.select(names).columns, column], [*names, name])
    with BlockingClient(broker.urls[0]) as client, client.subscribe("#", qos=1) as messages:
        with pytest.raises(QueryError, match=f"column '{name}': expected"):
            log.commit("bad", 0, log.stage("bad", "part", bad.schema, [bad]).parts)
        sink = uuid4().hex
        assert log.commit(sink, 0, log.stage(sink, "part", good.schema, [good]).parts)
        assert next(messages).topic == f"way/{name}"


# What goes wrong


def test_a_read_continues_after_the_broker_was_killed(tmp_path: Path) -> None:
    """A reader continues at its position when the broker runs again."""
    data = str(tmp_path / "data")
    with BrokerProcess(*LISTEN, "--data", data) as broker, FlightLog(broker.urls[1]) as log:
        mqtt, bulk = broker.port(0), broker.port(1)
        count = 300_000
        staged = log.stage("fill", "part", rows(0).schema, [rows(count)])
        log.commit("fill", 0, staged.parts)
        read = log.read(Query(stop=count, columns=("offset",)))
        got = [next(read)]
        assert broker.stop(signal.SIGKILL) == -signal.SIGKILL
        listen = (f"--listen=mqtt://127.0.0.1:{mqtt}", f"--listen=flight://127.0.0.1:{bulk}")
        with BrokerProcess(*listen, "--data", data):
            got += list(read)
            assert log.bounds("default").end == count
    offsets = pa.concat_tables([pa.Table.from_batches([one]) for one in got]).column("offset").to_pylist()
    assert offsets == list(range(count))


def test_an_aborted_sink_accepts_nothing_more(tmp_path: Path) -> None:
    with (
        BrokerProcess(*LISTEN, "--data", str(tmp_path / "data")) as broker,
        FlightLog(broker.urls[1]) as log,
    ):
        log.stage("s", "early", rows(0).schema, [rows(3)])
        log.abort("s")
        with pytest.raises(QueryError, match="sink 's' was aborted"):
            log.stage("s", "late", rows(0).schema, [rows(3)])
        assert [path for path in (tmp_path / "data" / "staging").rglob("*") if path.is_file()] == []
        staged = log.stage("another", "part", rows(0).schema, [rows(3)])
        assert log.commit("another", 0, staged.parts)
        assert log.table(Query()).num_rows == 3


def test_a_flight_process_that_dies_is_restarted(tmp_path: Path) -> None:
    with BrokerProcess(*LISTEN, "--data", str(tmp_path / "data")) as broker:
        publish(broker, [("a", "1")])
        with FlightLog(broker.urls[1]) as log:
            assert log.bounds("default").end == 1
            (child,) = children(broker)
            os.kill(child, signal.SIGKILL)
            publish(broker, [("a", "2")])
            assert log.bounds("default").end == 2
        assert broker.stop() == 0
        assert any("Flight process has ended and is started again" in line for line in broker.log)


def test_the_flight_process_does_not_load_pandas(broker: BrokerProcess) -> None:
    with FlightLog(broker.urls[1]) as log:
        assert log.streams() == ["default"]
    (child,) = children(broker)
    for process in (broker.process.pid, child):
        assert "/pandas/" not in Path(f"/proc/{process}/maps").read_text()


def test_the_process_ends_with_the_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(*LISTEN, "--data", str(tmp_path / "data"))
    assert_it_ends_with_its_broker(broker, 1)


def test_damage_is_reported(tmp_path: Path) -> None:
    with BrokerProcess(*LISTEN, "--data", str(tmp_path / "data")) as broker:
        publish(broker, [("a", "x" * 500)] * 20)
        (path,) = (tmp_path / "data" / "streams" / "default").glob("*.tail")
        data = bytearray(path.read_bytes())
        data[len(data.rstrip(b"\0")) // 2] ^= 1
        path.write_bytes(data)
        with FlightLog(broker.urls[1]) as log:
            with pytest.raises(DataLoss, match="stream default"):
                log.table(Query())
            told: list[str] = []
            read = list(log.read(Query(lost="skip"), told.append))
            assert sum(batch.num_rows for batch in read) == 19
            assert len(told) == 1


def test_flight_without_a_log_or_on_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="without a log on disk, there is nothing to read over Flight"):
        BrokerProcess("--ephemeral", "--listen=flight://127.0.0.1:0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"flight://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RuntimeError, match=f"cannot listen on {url}"):
            BrokerProcess(f"--listen={url}", "--data", str(tmp_path / "data"))


# Who may


def test_access_rules_are_enforced(tmp_path: Path) -> None:
    (tmp_path / "doorman.py").write_text(PLUGIN)
    (tmp_path / "pyrite.toml").write_text("[mqtt]\nauthenticator = 'doorman:make'\n")
    with BrokerProcess("--config", "pyrite.toml", *LISTEN, "--data", "data", cwd=tmp_path) as broker:
        url = broker.urls[1]
        strangers: list[dict[str, Any]] = [
            {},
            {"username": "bob", "password": "guess"},
            {"username": "broken"},
            {"token": "x"},
        ]
        for wrong in strangers:
            with (
                FlightLog(url, **wrong) as log,
                pytest.raises(PermissionError, match=r"not with that|internal"),
            ):
                log.streams()
        with FlightLog(url, username="ann", password="secret") as log:
            staged = log.stage("s", "p", rows(0).schema, [rows(3, "private/x"), rows(2, "open")])
            assert log.commit("s", 0, staged.parts)
            assert log.table(Query()).num_rows == 5
        with FlightLog(url, username="bob", password="secret") as log:
            with pytest.raises(PermissionError, match="not authorized: pull '#'"):
                log.table(Query())
            assert log.table(Query(topics=("open",))).num_rows == 2
            with pytest.raises(PermissionError, match="not authorized: publish 'private/x'"):
                log.stage("t", "p", rows(0).schema, [rows(3, "private/x")])
            staged = log.stage("t", "p", rows(0).schema, [rows(1, "open"), rows(3, "private/x")])
            with pytest.raises(QueryError, match="not authorized: publish 'private/x'"):
                log.commit("t", 0, staged.parts)
        with FlightLog(url, token="secret") as log:
            assert log.table(Query(topics=("open",))).num_rows == 2


def test_flight_over_tls_works(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    (tmp_path / "pyrite.toml").write_text("[tls]\ncertificate = 'server.pem'\n")
    listen = "--listen=flights://127.0.0.1:0"
    with BrokerProcess("--config", "pyrite.toml", listen, "--data", "data", cwd=tmp_path) as broker:
        with FlightLog(broker.urls[0], ca_file=str(tmp_path / "ca.pem")) as log:
            assert log.streams() == ["default"]
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
        with (
            FlightLog(broker.urls[0], ca_file=str(tmp_path / "other.pem"), retry=0.5) as log,
            pytest.raises(ConnectionError, match="certificate is not trusted"),
        ):
            log.streams()

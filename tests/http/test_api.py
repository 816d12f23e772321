"""Every path of the API, against a real broker."""

from __future__ import annotations

import base64
import threading
import time
from datetime import datetime
from typing import Any

import httpx
import pyarrow as pa
import pytest

from pyrite import __version__
from pyrite.client import BlockingClient
from pyrite.http.handlers import reachable
from pyrite.http.reading import _fitting
from pyrite.server.metric_table import METRICS
from pyrite.storage.query import SCHEMA
from tests.conformance.client import Client, Tcp
from tests.support.process import BrokerProcess
from tests.support.waiting import let_pass

from .conftest import MQTT, WS

ARROW = "application/vnd.apache.arrow.stream"


def publish(api: httpx.Client, topic: str, payload: str = "x", **more: Any) -> dict[str, Any]:
    answer = api.post("/api/v1/publish", json={"topic": topic, "payload": payload, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def messages(api: httpx.Client, **asked: Any) -> dict[str, Any]:
    answer = api.get("/api/v1/streams/default/messages", params=asked)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def problem(answer: httpx.Response, status: int, text: str) -> None:
    """Require a problem of RFC 9457 whose detail contains a text."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert found["status"] == status
    assert text in found["detail"]


# The broker itself


def test_health_and_readiness_are_reported(api: httpx.Client) -> None:
    assert api.get("/health").json() == {"status": "ok"}
    answer = api.get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "reason": None})


def test_the_broker_describes_itself(broker: BrokerProcess, api: httpx.Client) -> None:
    found = api.get("/api/v1/broker").json()
    assert found.pop("uptime_seconds") >= 0
    assert found == {
        "version": __version__,
        "listeners": broker.urls,
        "websocket": broker.urls[WS],
        "users": False,
        "user": None,
        "reloads": 0,
    }


@pytest.mark.parametrize(
    ("url", "host", "expected"),
    [
        ("ws://0.0.0.0:8083/mqtt", "broker.example", "ws://broker.example:8083/mqtt"),
        ("wss://[::]:8084/mqtt", "2001:db8::1", "wss://[2001:db8::1]:8084/mqtt"),
        ("ws://127.0.0.1:8083/mqtt", "localhost", "ws://127.0.0.1:8083/mqtt"),
        ("ws://localhost:8083/x", "other", "ws://localhost:8083/x"),
        ("ws://0.0.0.0:8083/mqtt", None, "ws://0.0.0.0:8083/mqtt"),
    ],
)
def test_the_websocket_url_has_a_reachable_host(url: str, host: str | None, expected: str) -> None:
    assert reachable(url, host) == expected


def test_the_openapi_description_is_complete(api: httpx.Client) -> None:
    found = api.get("/openapi.json").json()
    assert found["openapi"].startswith("3.1")
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            if method == "parameters":
                continue
            where = path.replace("{id}", "none").replace("{name}", "none").replace("{topic}", "none")
            answer = api.request(method.upper(), where)
            assert answer.status_code != 405, path
            assert str(answer.status_code) in operation["responses"], (path, answer.text)


def test_the_dashboard_is_served_with_security_headers(api: httpx.Client) -> None:
    answer = api.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "connect-src 'self' ws: wss:" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    again = api.get("/", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304
    assert api.get("/../app.py").status_code == 404
    assert api.get("/%2e%2e/app.py").status_code == 404
    problem(api.get("/none.js"), 404, "no such path: '/none.js'")


def test_every_counter_has_a_metric(api: httpx.Client) -> None:
    publish(api, "metrics", qos=1)
    answer = api.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    names = {line.split()[0].partition("{")[0] for line in answer.text.splitlines() if line[0] != "#"}
    # The times of commits are there once $SYS was published.
    wanted = {f"pyrite_{metric.name}" for metric in METRICS if metric.name and "cluster" not in metric.name}
    assert wanted <= names, wanted - names
    helped = {line.split()[2] for line in answer.text.splitlines() if line.startswith("# HELP")}
    assert helped == names
    values = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if line[0] != "#")
    assert int(values["pyrite_publish_received_total"]) >= 1
    assert int(values['pyrite_stream_end_offset{stream="default"}']) >= 1
    assert int(values['pyrite_stream_size_bytes{stream="default"}']) > 0
    assert float(values["pyrite_process_cpu_seconds_total"]) > 0
    assert int(values["pyrite_process_resident_memory_bytes"]) > 1_000_000


# Clients


def test_clients_are_listed(broker: BrokerProcess, api: httpx.Client) -> None:
    with BlockingClient(broker.urls[MQTT], client_id="a/b c") as client:
        client.subscribe("x/#", qos=1)
        client.subscribe("y", qos=0)
        (found,) = api.get("/api/v1/clients").json()["clients"]
        since = datetime.fromisoformat(found.pop("connected_since"))
        assert abs(since.timestamp() - time.time()) < 10
        assert found.pop("sent") > 0
        assert found.pop("received") > 0
        assert found == {
            "id": "a/b c",
            "user": None,
            "protocol": "MQTT 5",
            "address": "127.0.0.1",
            "keep_alive": 60.0,
            "subscriptions": 2,
            "queued": 0,
            "slow": False,
        }
        one = api.get("/api/v1/clients/a%2Fb%20c").json()
        assert one["id"] == "a/b c"
        assert [(each["filter"], each["qos"]) for each in one["subscribed"]] == [("x/#", 1), ("y", 0)]
    problem(api.get("/api/v1/clients/none"), 404, "no client 'none' is connected")
    problem(api.delete("/api/v1/clients/none"), 404, "no client 'none' is connected")


def test_clients_are_listed_in_pages(broker: BrokerProcess, api: httpx.Client) -> None:
    names = [f"page-{number:02}" for number in range(12)]
    clients = [Client(Tcp("127.0.0.1", broker.port(MQTT))) for _ in names]
    try:
        for client, name in zip(clients, names, strict=True):
            client.connect(name)
        got: list[str] = []
        after = None
        for _ in range(4):
            asked = {"limit": 5} | ({} if after is None else {"after": after})
            found = api.get("/api/v1/clients", params=asked).json()
            got += [one["id"] for one in found["clients"] if one["id"].startswith("page-")]
            after = found["next"]
            if after is None:
                break
        assert got == names
        assert after is None
    finally:
        for client in clients:
            client.close()


def test_a_client_is_disconnected_with_a_reason(broker: BrokerProcess, api: httpx.Client) -> None:
    client = Client(Tcp("127.0.0.1", broker.port(MQTT)))
    try:
        client.connect("unwanted")
        assert api.delete("/api/v1/clients/unwanted").status_code == 204
        client.expect_disconnect(0x98)
        assert api.get("/api/v1/clients/unwanted").status_code == 404
    finally:
        client.close()


# Topics


def test_topics_are_created_listed_and_deleted(api: httpx.Client) -> None:
    for topic in ("made/a", "made/b", "made/%C3%BC/x", "made//empty", "made/%0A"):
        assert api.put(f"/api/v1/topics/{topic}").status_code == 201
    assert api.put("/api/v1/topics/made/a").status_code == 204
    publish(api, "made/b", "value", retain=True, qos=1)
    api.post("/api/v1/publish", json={"topic": "made/c", "payload_base64": "/w==", "retain": True})
    found = api.get("/api/v1/topics", params={"filter": "made/#"}).json()
    assert found["next"] is None
    assert {one["topic"]: (one["created"], one["kept"]) for one in found["topics"]} == {
        "made/\n": (True, None),
        "made//empty": (True, None),
        "made/a": (True, None),
        "made/b": (True, {"payload": "value", "size": 5, "qos": 1}),
        "made/c": (False, {"payload_base64": "/w==", "size": 1, "qos": 0}),
        "made/ü/x": (True, None),
    }
    first = api.get("/api/v1/topics", params={"filter": "made/#", "limit": 2}).json()
    assert [one["topic"] for one in first["topics"]] == ["made/\n", "made//empty"]
    assert first["next"] == "made//empty"
    rest = api.get("/api/v1/topics", params={"filter": "made/#", "after": "made//empty"}).json()
    assert [one["topic"] for one in rest["topics"]] == ["made/a", "made/b", "made/c", "made/ü/x"]
    exact = api.get("/api/v1/topics", params={"filter": "made/a"}).json()
    assert [one["topic"] for one in exact["topics"]] == ["made/a"]
    for topic in ("made/a", "made/b", "made/c", "made/%C3%BC/x", "made//empty", "made/%0A"):
        assert api.delete(f"/api/v1/topics/{topic}").status_code == 204
    problem(api.delete("/api/v1/topics/made/a"), 404, "there is no topic 'made/a'")
    assert api.get("/api/v1/topics", params={"filter": "made/#"}).json()["topics"] == []


def test_a_topic_is_returned_with_its_retained_value(api: httpx.Client) -> None:
    assert api.put("/api/v1/topics/one/made").status_code == 201
    assert api.get("/api/v1/topics/one/made").json() == {"topic": "one/made", "created": True, "kept": None}
    large = "x" * 100_000
    publish(api, "one/large", large, retain=True, qos=1)
    found = api.get("/api/v1/topics/one/large").json()
    assert found == {
        "topic": "one/large",
        "created": False,
        "kept": {"payload": large, "size": 100_000, "qos": 1},
    }
    (listed,) = api.get("/api/v1/topics", params={"filter": "one/large"}).json()["topics"]
    assert listed["kept"] == {"size": 100_000, "qos": 1}
    publish(api, "one/larger", "x" * 5_000_000, retain=True)
    assert api.get("/api/v1/topics/one/larger").json()["kept"] == {"size": 5_000_000, "qos": 0}
    for topic in ("made", "large", "larger"):
        assert api.delete(f"/api/v1/topics/one/{topic}").status_code == 204
    problem(api.get("/api/v1/topics/one/made"), 404, "topic 'one/made' was not created")
    problem(api.get("/api/v1/topics/one/%2B"), 400, "a topic name must not contain wildcards")
    problem(api.get("/api/v1/topics/one?limit=1"), 400, "unknown parameter 'limit'")


def test_topics_are_listed_level_by_level(api: httpx.Client) -> None:
    made = ["plant", "plant/oven/heat", "plant/oven/heat/max", "plant/press", "plant-b/x", "/slash"]
    for topic in made:
        assert api.put(f"/api/v1/topics/{topic}").status_code == 201
    for number in range(120):
        publish(api, f"plant/robots/{number:03}", str(number), retain=True)
    publish(api, "plant/press", "12", retain=True)

    def levels(**asked: Any) -> list[tuple[str, bool, Any, int, int]]:
        found: list[tuple[str, bool, Any, int, int]] = []
        for _ in range(100):
            answer = api.get("/api/v1/tree", params=asked)
            assert answer.status_code == 200, answer.text
            page = answer.json()
            for one in page["levels"]:
                value = None if one["kept"] is None else one["kept"]["payload"]
                found.append((one["name"], one["created"], value, *one["below"].values()))
            if page["next"] is None:
                return found
            asked["after"] = page["next"]
        raise AssertionError("there is no end")

    first = [one for one in levels(limit=1) if one[0] in ("plant", "plant-b", "")]
    assert first == [("", False, None, 1, 0), ("plant", True, None, 3, 121), ("plant-b", False, None, 1, 0)]
    assert not any(name.startswith("$") for name, *_ in levels())
    plant = [("oven", False, None, 2, 0), ("press", True, "12", 0, 0), ("robots", False, None, 0, 120)]
    assert levels(below="plant") == levels(below="plant", limit=2) == plant
    assert levels(below="plant/oven") == [("heat", True, None, 1, 0)]
    assert levels(below="") == [("slash", True, None, 0, 0)]
    robots = [(f"{number:03}", False, str(number), 0, 0) for number in range(120)]
    assert levels(below="plant/robots", limit=70) == robots
    assert levels(below="none") == []
    assert "uptime" in [name for name, *_ in levels(below="$SYS/broker")]
    wrong = "below 'a/#/': a topic name must not contain wildcards"
    problem(api.get("/api/v1/tree", params={"below": "a/#"}), 400, wrong)
    problem(api.get("/api/v1/tree", params={"below": "a/" * 200}), 400, "levels")
    for topic in [*made, *(f"plant/robots/{number:03}" for number in range(120))]:
        assert api.delete(f"/api/v1/topics/{topic}").status_code == 204


def test_invalid_topics_are_refused(api: httpx.Client) -> None:
    problem(api.put("/api/v1/topics/a/%23"), 400, "a topic name must not contain wildcards")
    problem(api.put("/api/v1/topics/$SYS/x"), 409, "topics that begin with $ are reserved for the broker")
    problem(api.put("/api/v1/topics/%FF"), 400, "is not UTF-8")
    problem(api.put("/api/v1/topics/"), 400, "must not be empty")
    problem(api.get("/api/v1/topics?filter=a%23"), 400, "'#' must be the whole")
    problem(api.get("/api/v1/topics?filter=%FF"), 400, "the query string is not UTF-8")
    problem(api.get("/api/v1/topics?filter=$share/g/a"), 400, "$share is for subscriptions")


def test_the_path_names_exactly_one_topic(api: httpx.Client) -> None:
    """The part of the path before the topic may be percent-encoded; it is not part of the topic."""
    assert api.put("/api/v1/topics/s/mine").status_code == 201
    problem(api.delete("/api/v1/%74opics/mine"), 404, "/api/v1/topics/NAME")
    assert api.get("/api/v1/topics/s/mine").json()["created"]
    problem(api.get("/api/v1/streams/default%2Fmessages"), 404, "/api/v1/streams/NAME/messages")


# Publishing


def test_a_published_message_is_logged_and_delivered(broker: BrokerProcess, api: httpx.Client) -> None:
    with BlockingClient(broker.urls[MQTT]) as client, client.subscribe("to/#", qos=2) as received:
        found = publish(
            api,
            "to/you",
            "grüße",
            qos=2,
            content_type="text/plain",
            response_topic="to/me",
            correlation_data_base64="AP8=",
            message_expiry=60,
            payload_format=1,
            user_properties=[["a", "1"], ["a", "2"]],
        )
        assert found["stream"] == "default"
        (logged,) = messages(api, **{"from": found["offset"], "limit": 1})["messages"]
        assert abs(datetime.fromisoformat(logged.pop("timestamp")).timestamp() - time.time()) < 10
        assert logged == {
            "offset": found["offset"],
            "topic": "to/you",
            "payload": "grüße",
            "qos": 2,
            "retain": False,
            "payload_format": 1,
            "message_expiry": 60,
            "content_type": "text/plain",
            "response_topic": "to/me",
            "correlation_data_base64": "AP8=",
            "user_properties": [["a", "1"], ["a", "2"]],
        }
        message = next(received)
        assert (message.topic, message.payload, message.qos) == ("to/you", "grüße".encode(), 2)
        assert message.properties["content_type"] == "text/plain"
        assert message.properties["correlation_data"] == b"\x00\xff"


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_is_in_the_log_when_its_response_comes(api: httpx.Client, qos: int) -> None:
    for number in range(10):
        offset = publish(api, "safe", str(number), qos=qos)["offset"]
        (logged,) = messages(api, **{"from": offset})["messages"]
        assert (logged["topic"], logged["payload"]) == ("safe", str(number))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "topic: expected a string"),
        ({"payload": "x"}, "topic: expected a string"),
        ({"topic": "a"}, "expected either payload"),
        ({"topic": "a", "payload": "x", "payload_base64": "eA=="}, "expected either payload"),
        ({"topic": "a", "payload": 1}, "payload: expected a string"),
        ({"topic": "a", "payload_base64": "x"}, "payload_base64: expected base64"),
        ({"topic": "a/#", "payload": "x"}, "a topic name must not contain wildcards"),
        ({"topic": "", "payload": "x"}, "topic: expected a string, not empty"),
        ({"topic": "a\0", "payload": "x"}, "without the null character"),
        ({"topic": "a" * 65_536, "payload": "x"}, "at most 65535 bytes"),
        ({"topic": "a", "payload": "x", "qos": 3}, "qos: expected a whole number from 0 to 2"),
        ({"topic": "a", "payload": "x", "qos": True}, "qos: expected a whole number"),
        ({"topic": "a", "payload": "x", "retain": 1}, "retain: expected true or false"),
        ({"topic": "a", "payload": "x", "message_expiry": -1}, "message_expiry: expected"),
        ({"topic": "a", "payload": "x", "user_properties": [["a"]]}, "user_properties: expected"),
        (
            {"topic": "a", "payload": "x", "response_topic": "b/+"},
            "response_topic: expected a nonempty topic",
        ),
        ({"topic": "a", "payload": "x", "content_type": None}, "content_type: expected a string"),
        ({"topic": "a", "payload": "x", "colour": 1}, "unknown key 'colour'"),
        ({"topic": "a", "payload_base64": "/w==", "payload_format": 1}, "payload_format: 1 means UTF-8"),
    ],
)
def test_unpublishable_messages_are_refused(api: httpx.Client, body: dict[str, Any], text: str) -> None:
    problem(api.post("/api/v1/publish", json=body), 400, text)


def test_invalid_bodies_are_refused(api: httpx.Client) -> None:
    json = {"Content-Type": "application/json"}
    problem(api.post("/api/v1/publish", content=b"{", headers=json), 400, "the body is not JSON")
    problem(api.post("/api/v1/publish", content=b"[1]", headers=json), 400, "expected a JSON object")
    twice = b'{"topic": "a", "payload": "x", "topic": "b"}'
    problem(api.post("/api/v1/publish", content=twice, headers=json), 400, "duplicate key 'topic'")
    problem(api.post("/api/v1/publish", content=b"[" * 100_000, headers=json), 400, "is not JSON")
    problem(
        api.post("/api/v1/publish", content=b'{"topic": "a", "payload": "\\ud800"}', headers=json),
        400,
        "UTF-8",
    )
    problem(api.post("/api/v1/publish", content=b"{}"), 415, "application/json")
    problem(api.post("/api/v1/publish", json={"topic": "$SYS/x", "payload": ""}), 403, "$SYS")
    problem(api.get("/api/v1/publish"), 405, "GET is not allowed for this path: expected POST")
    assert api.get("/api/v1/publish").headers["allow"] == "POST"


# The log


def test_streams_are_listed(api: httpx.Client) -> None:
    end = publish(api, "streams")["offset"] + 1
    (found,) = api.get("/api/v1/streams").json()["streams"]
    assert found.pop("bytes") > 0
    assert found == {"name": "default", "topics": ["#"], "first": 0, "end": end, "segments": 1, "error": None}


def test_messages_are_read_in_pages_and_by_filter(api: httpx.Client) -> None:
    start = publish(api, "pages/0", "0")["offset"]
    for number in range(1, 10):
        publish(api, f"pages/{number % 2}", str(number))
    got: list[str] = []
    position: int | None = start
    for _ in range(10):
        found = messages(api, **{"from": position, "limit": 3, "filter": "pages/1"})
        got += [one["payload"] for one in found["messages"]]
        position = found["next"]
        if position is None:
            break
    assert position is None
    assert got == ["1", "3", "5", "7", "9"]
    assert messages(api, **{"from": "latest"}) == {"messages": [], "next": None, "skipped": []}
    recent = messages(api, **{"from": "-1h", "filter": "pages/#", "limit": 1_000})["messages"]
    assert [one["payload"] for one in recent] == [str(number) for number in range(10)]
    since = recent[5]["timestamp"]
    later = messages(api, **{"from": since, "filter": "pages/#"})["messages"]
    assert [one["payload"] for one in later] == ["5", "6", "7", "8", "9"]


def test_messages_are_read_as_arrow(api: httpx.Client) -> None:
    start = publish(api, "arrow", "0", content_type="x")["offset"]
    for number in range(1, 6):
        api.post("/api/v1/publish", json={"topic": "arrow", "payload_base64": _base64(b"\xff%d" % number)})
    answer = api.get(
        "/api/v1/streams/default/messages", params={"from": start, "limit": 4}, headers={"Accept": ARROW}
    )
    assert answer.headers["content-type"] == ARROW
    assert answer.headers["pyrite-next"] == str(start + 4)
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.schema == SCHEMA
    assert table.column("payload").to_pylist() == [b"0", b"\xff1", b"\xff2", b"\xff3"]
    rest = api.get(
        "/api/v1/streams/default/messages",
        params={"from": start + 4, "limit": 100_000},
        headers={"Accept": ARROW},
    )
    assert "pyrite-next" not in rest.headers
    assert pa.ipc.open_stream(rest.content).read_all().num_rows == 2


@pytest.mark.parametrize(
    ("accept", "arrow"),
    [
        (["Application/VND.apache.arrow.stream"], True),
        (["text/html", f"{ARROW};q=0.5"], True),
        ([f"{ARROW};q=0.9, */*;q=0.1"], True),
        ([f"{ARROW};q=0, application/json"], False),
        ([f"application/json, {ARROW}; q=0.1"], False),
        (["*/*"], False),
    ],
)
def test_the_preferred_media_type_is_sent(api: httpx.Client, accept: list[str], arrow: bool) -> None:
    headers = [("Accept", one) for one in accept]
    answer = api.get("/api/v1/streams/default/messages", headers=headers)
    assert answer.headers["content-type"] == (ARROW if arrow else "application/json")


@pytest.mark.parametrize("what", ["topic", "payload", "user_properties"])
def test_a_response_is_bounded_whatever_makes_its_messages_large(what: str) -> None:
    large = {"topic": "x" * 1_000, "payload": b"x" * 1_000, "user_properties": [("key", "x" * 997)]}[what]
    row = dict.fromkeys(SCHEMA.names) | {"topic": "", "payload": b"", what: large}
    rows = [row | {"offset": number, "timestamp": 0, "qos": 0, "retain": False} for number in range(50)]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    assert _fitting(batch, 1_000, 10_500) == 10
    assert _fitting(batch, 5, 10_500) == 5
    assert _fitting(batch, 1_000, 10) == 1, "one, however large"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/api/v1/streams/none/messages", 404, "there is no stream 'none'"),
        ("/api/v1/streams/default/messages?from=soon", 400, "'soon' is not a position"),
        ("/api/v1/streams/default/messages?limit=0", 400, "limit: expected a whole number from 1 to 1000"),
        ("/api/v1/streams/default/messages?limit=1001", 400, "from 1 to 1000"),
        ("/api/v1/streams/default/messages?filter=a%23", 400, "'#' must be the whole"),
        (
            "/api/v1/streams/default/messages?colour=1",
            400,
            "unknown parameter 'colour'; expected",
        ),
        ("/api/v1/clients?limit=1&limit=2", 400, "duplicate parameter 'limit'"),
        ("/api/v1/clients?limit=x", 400, "limit: expected a whole number"),
        ("/health?x=1", 400, "expected none"),
    ],
)
def test_invalid_queries_are_refused(api: httpx.Client, path: str, status: int, text: str) -> None:
    problem(api.get(path), status, text)


# Pull


def test_a_consumer_gets_each_message_once(api: httpx.Client) -> None:
    for number in range(5):
        publish(api, "work", str(number))

    def pull(**asked: Any) -> list[dict[str, Any]]:
        answer = api.post("/api/v1/consumers/team%2Fone/pull", json=asked)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["messages"]
        return found

    first = pull(filter="work", max=2)
    assert [one["payload"] for one in first] == ["0", "1"]
    rest = pull(max=100)
    assert [one["payload"] for one in rest] == ["2", "3", "4"]
    assert pull() == []
    where = "/api/v1/consumers/team%2Fone/acknowledge"
    assert api.post(where, json={"offset": first[0]["offset"]}).status_code == 204
    offsets = [one["offset"] for one in [*first[1:], *rest]]
    asked = {"filter": "work", "stream": "default", "offsets": offsets}
    assert api.post(where, json=asked).status_code == 204


def test_a_pull_waits_for_a_message(api: httpx.Client) -> None:
    began = time.monotonic()
    wait = {"filter": "wait", "wait": 0.3}
    assert api.post("/api/v1/consumers/patient/pull", json=wait).json() == {"messages": []}
    assert time.monotonic() - began >= 0.3
    with httpx.Client(base_url=api.base_url) as other:
        timer = threading.Timer(0.2, publish, (other, "wait", "here"))
        timer.start()
        try:
            found = api.post("/api/v1/consumers/patient/pull", json={"wait": 20, "max": 5}).json()
        finally:
            timer.join()
    (message,) = found["messages"]
    assert (message["payload"], message["stream"]) == ("here", "default")


def test_a_closed_connection_is_given_no_message(api: httpx.Client) -> None:
    path = "/api/v1/consumers/hasty/pull"
    with httpx.Client(base_url=api.base_url, timeout=0.3) as hasty, pytest.raises(httpx.ReadTimeout):
        hasty.post(path, json={"filter": "hasty", "wait": 30})
    api.get("/health").raise_for_status()
    publish(api, "hasty", "here")
    let_pass(0.3, "the message would be given to the connection that is gone")
    (message,) = api.post(path, json={"wait": 10}).json()["messages"]
    assert message["payload"] == "here"


def test_invalid_pulls_are_refused(api: httpx.Client) -> None:
    pull = "/api/v1/consumers/strict/pull"
    problem(api.post(pull, json={}), 404, "there is no consumer 'strict': pull with a filter to create it")
    assert api.post(pull, json={"filter": "a/#"}).status_code == 200
    problem(api.post(pull, json={"filter": "b"}), 409, "already exists with filter 'a/#'")
    problem(api.post(pull, json={"filter": "a#"}), 400, "'#' must be the whole")
    problem(api.post(pull, json={"max": 1_001}), 400, "max: expected a whole number from 1 to 1000")
    problem(api.post(pull, json={"wait": 31}), 400, "wait: expected a number from 0 to 30")
    done = "/api/v1/consumers/strict/acknowledge"
    problem(api.post(done, json={}), 400, "expected either offset")
    problem(api.post(done, json={"offset": 1, "offsets": [1]}), 400, "expected either offset")
    problem(api.post(done, json={"offset": 1, "stream": "none"}), 404, "there is no stream 'none'")
    problem(api.post(done, json={"offset": 1, "filter": "b"}), 409, "already exists with filter 'a/#'")
    problem(api.post("/api/v1/consumers/none/acknowledge", json={"offset": 1}), 404, "no consumer 'none'")


# Without a log


def test_a_broker_without_a_log_has_no_streams() -> None:
    with (
        BrokerProcess("--ephemeral", "--listen=http://127.0.0.1:0") as broker,
        httpx.Client(base_url=broker.urls[0]) as api,
    ):
        assert publish(api, "a", qos=1) == {"offset": None, "stream": None}
        assert api.get("/api/v1/streams").json() == {"streams": [], "withheld": False}
        assert api.get("/api/v1/broker").json()["websocket"] is None
        assert "pyrite_publish_received_total 1" in api.get("/metrics").text
        problem(api.get("/api/v1/streams/default/messages"), 404, "keeps nothing on disk")
        problem(api.post("/api/v1/consumers/x/pull", json={"filter": "a"}), 404, "keeps nothing on disk")

"""The HTTP process under hostile clients: anonymous ones, and users without permission."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyrite.access.users import User, hash_password, write_users
from tests.support.children import children
from tests.support.process import BrokerProcess

from .conftest import HTTP, LISTEN

CONFIG = """
[access]
users = "users"

[[access.rule]]
users = ["ann"]
publish = ["#"]
subscribe = ["#"]
pull = ["#"]
admin = ["#"]

[[access.rule]]
users = ["bob"]
publish = ["bob/#"]
pull = ["bob/#"]

[[stream]]
name = "plans"
topics = ["ann/secret/#"]

[[stream]]
name = "default"

[quotas.default]
concurrent_reads = 3
"""
ANN, BOB, EVE = (("ann", "word-of-ann"), ("bob", "word-of-bob"), ("eve", "word-of-eve"))
JSON = "Content-Type: application/json\r\n"
UNFINISHED = f"POST /api/v1/publish HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: 1000\r\n\r\n{{"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    write_users(
        folder / "users", [User(name, hash_password(f"word-of-{name}")) for name in ("ann", "bob", "eve")]
    )
    (folder / "pyrite.toml").write_text(CONFIG)
    with BrokerProcess("--config", "pyrite.toml", *LISTEN, "--data", "data", cwd=folder) as broker:
        yield broker
        log = "\n".join(broker.log)
        assert "internal error" not in log
        assert "Traceback" not in log


@pytest.fixture
def api(guarded: BrokerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.urls[HTTP], timeout=60) as client:
        yield client


def large_body() -> bytes:
    """Return a body of 21 MB that becomes more than 64 MiB as JSON in ASCII."""
    pairs = [["k", "é" * 10_000] for _ in range(1_000)]
    return json.dumps({"topic": "a", "payload": "x", "user_properties": pairs}, ensure_ascii=False).encode()


@pytest.mark.parametrize(("who", "status"), [(None, 401), (EVE, 403), (ANN, 413)])
def test_a_body_of_21_mb_ends_no_process(
    guarded: BrokerProcess, api: httpx.Client, who: Any, status: int
) -> None:
    assert api.get("/health").status_code == 200
    before = children(guarded)
    answer = api.post(
        "/api/v1/publish", content=large_body(), headers={"Content-Type": "application/json"}, auth=who
    )
    assert answer.status_code == status
    assert api.get("/health").status_code == 200
    assert children(guarded) == before


def test_a_body_of_21_mb_is_published_where_everyone_may_publish(tmp_path: Path) -> None:
    with (
        BrokerProcess(*LISTEN, "--data", str(tmp_path / "data")) as broker,
        httpx.Client(base_url=broker.urls[HTTP], timeout=60) as api,
    ):
        assert api.get("/health").status_code == 200
        before = children(broker)
        kind = {"Content-Type": "application/json"}
        assert api.post("/api/v1/publish", content=large_body(), headers=kind).status_code == 413
        payload = json.dumps({"topic": "a", "payload": "\u0001é" * 1_500_000}).encode()
        assert api.post("/api/v1/publish", content=payload, headers=kind).status_code == 200
        assert children(broker) == before


def test_the_body_is_not_read_without_permission_to_publish(guarded: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", guarded.port(HTTP)), timeout=30) as one:
        one.sendall(UNFINISHED.encode())
        assert one.recv(65_536).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("begun", [UNFINISHED, UNFINISHED[:60], ""])
def test_a_thousand_anonymous_connections_do_not_block_health_checks(
    guarded: BrokerProcess, api: httpx.Client, begun: str
) -> None:
    where = ("127.0.0.1", guarded.port(HTTP))
    sockets = []
    try:
        for _ in range(1_020):
            one = socket.create_connection(where, timeout=30)
            one.sendall(begun.encode())
            sockets.append(one)
        for path in ("/ready", "/metrics"):
            assert api.get(path).status_code == 200
        assert api.get("/api/v1/broker", auth=ANN).json()["user"] == "ann"
    finally:
        for one in sockets:
            one.close()


def test_waiting_pulls_are_limited_by_user(guarded: BrokerProcess, api: httpx.Client) -> None:
    def pull(name: str, who: tuple[str, str]) -> socket.socket:
        one = socket.create_connection(("127.0.0.1", guarded.port(HTTP)), timeout=30)
        body = json.dumps({"filter": f"{who[0]}/nothing", "wait": 30})
        given = httpx.BasicAuth(*who)._auth_header
        one.sendall(
            f"POST /api/v1/consumers/{name}/pull HTTP/1.1\r\nHost: localhost\r\nAuthorization: {given}\r\n"
            f"{JSON}Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        return one

    waiting = [pull(f"many-{number}", BOB) for number in range(4)]
    try:
        refused = None
        while refused is None:  # which of the four is the one too many is not known
            for one in waiting:
                one.settimeout(0.05)
                try:
                    refused = one.recv(65_536)
                    break
                except TimeoutError:
                    pass
        assert refused.startswith(b"HTTP/1.1 429 ")
        asked = {"filter": "ann/nothing"}
        assert api.post("/api/v1/consumers/hers/pull", json=asked, auth=ANN).status_code == 200
    finally:
        for one in waiting:
            one.close()
    asked = {"filter": "bob/other"}
    while (answer := api.post("/api/v1/consumers/his/pull", json=asked, auth=BOB)).status_code == 429:
        pass  # until it is known that those who waited have gone
    assert answer.status_code == 200


def test_errors_reveal_nothing_about_other_users(api: httpx.Client) -> None:
    asked = {"filter": "ann/secret/plan"}
    assert api.post("/api/v1/consumers/hidden/pull", json=asked, auth=ANN).status_code == 200
    for action, body in (("pull", {}), ("pull", {"filter": "bob/x"}), ("acknowledge", {"offset": 0})):
        answer = api.post(f"/api/v1/consumers/hidden/{action}", json=body, auth=BOB)
        assert answer.status_code in (403, 409)
        assert "secret" not in answer.text
    streams = api.get("/api/v1/streams", auth=BOB).json()["streams"]
    assert [(one["name"], one["topics"]) for one in streams] == [("default", [])]
    streams = api.get("/api/v1/streams", auth=ANN).json()["streams"]
    assert [one["name"] for one in streams] == ["plans", "default"]
    assert streams[0]["topics"] == ["ann/secret/#"]
    assert api.get("/api/v1/streams", auth=ANN).json()["withheld"] is False
    assert api.get("/api/v1/streams", auth=EVE).json() == {"streams": [], "withheld": True}


def test_an_anonymous_client_learns_only_that_it_must_log_in(api: httpx.Client) -> None:
    found = api.get("/api/v1/broker").json()
    assert found.pop("reloads") == 0
    assert found.pop("websocket").startswith("ws://"), "where the dashboard logs in"
    assert found == {
        "version": None,
        "uptime_seconds": None,
        "listeners": [],
        "users": True,
        "user": None,
    }
    assert api.get("/api/v1/broker", auth=EVE).json()["version"]


ROUTES = [
    ("GET", "clients"),
    ("GET", "clients/x"),
    ("DELETE", "clients/x"),
    ("GET", "topics?filter=a"),
    ("GET", "topics/a"),
    ("PUT", "topics/a"),
    ("DELETE", "topics/a"),
    ("GET", "tree"),
    ("GET", "metrics"),
    ("GET", "cluster"),
    ("GET", "quotas"),
    ("GET", "readers"),
    ("GET", "streams"),
    ("GET", "streams/default/messages"),
    ("GET", "streams/missing/messages"),
    ("POST", "publish"),
    ("POST", "consumers/c/pull"),
    ("POST", "consumers/c/acknowledge"),
]


def test_a_forbidden_consumer_is_answered_like_a_missing_one(api: httpx.Client) -> None:
    made = api.post("/api/v1/consumers/veiled/pull", json={"filter": "#", "wait": 0}, auth=ANN)
    assert made.status_code == 200
    for action, body in (
        ("pull", {"wait": 0}),
        ("acknowledge", {"stream": "default", "offset": 0}),
    ):
        answers = []
        for name in ("veiled", "absent"):
            answer = api.post(f"/api/v1/consumers/{name}/{action}", json=body, auth=BOB)
            answers.append((answer.status_code, answer.json()["detail"].replace(name, "NAME")))
        assert answers[0] == answers[1]
        assert answers[0][0] == 403, answers
    answer = api.post("/api/v1/consumers/absent/pull", json={"wait": 0}, auth=ANN)
    assert answer.status_code == 404, "whoever may pull everything is told"


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_permissions_are_checked_before_work_on_every_route(
    api: httpx.Client, method: str, path: str
) -> None:
    headers = {"Content-Type": "application/json"} if method == "POST" else {}
    content = b"{ this is no JSON" if method == "POST" else None
    for who, status in ((None, 401), (EVE, 403)):
        answer = api.request(method, f"/api/v1/{path}", content=content, headers=headers, auth=who)
        if who is not None and path == "quotas":
            users = [one["user"] for one in answer.json()["accounts"]]
            assert users == ["eve"], "those of others are not told"
            continue
        if who is not None and path == "readers":
            assert answer.json() == {"readers": []}, "those of others are not told"
            continue
        if who is not None and path == "streams":
            assert answer.json() == {"streams": [], "withheld": True}
            continue
        assert answer.status_code == status, "what is wrong with the request is not looked at"


def test_every_route_is_in_the_table_of_permissions(api: httpx.Client) -> None:
    described = api.get("/openapi.json").json()["paths"]
    asked = {
        (method.upper(), path.removeprefix("/api/v1/").partition("/")[0])
        for path, methods in described.items()
        for method in methods
        if path.startswith("/api/v1/") and path != "/api/v1/broker"
        if method in ("get", "put", "post", "delete")
    }
    tested = {(method, path.partition("?")[0].partition("/")[0]) for method, path in ROUTES}
    assert asked <= tested

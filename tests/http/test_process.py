"""The HTTP process: authentication, bounds, restart and end."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import jwt
import pytest
import trustme

from pyrite.access.users import User, hash_password, write_users
from tests.durability.disk import CannotMount, SmallDisk
from tests.server.test_authenticator import PLUGIN
from tests.support.children import assert_it_ends_with_its_broker, children
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until

from .conftest import HTTP, LISTEN

SECRET = "0123456789abcdef" * 4
CONFIG = """
[access]
users = "users"
jwt_keys = "keys"

[[access.rule]]
users = ["ann"]
publish = ["#"]
subscribe = ["#"]
pull = ["#"]
admin = ["#"]

[[access.rule]]
users = ["bob"]
publish = ["bob/#"]

[limits]
max_packet_size = 1000
connect_timeout = 0.5
"""


def until_it_answers(api: httpx.Client, patience: float = 30.0) -> float:
    """Wait for the API, and return the seconds until it answered."""
    began = time.monotonic()

    def answers() -> bool:
        try:
            return api.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    wait_until(answers, "the API answers", patience)
    return time.monotonic() - began


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with users and tight limits."""
    folder = tmp_path_factory.mktemp("guarded")
    write_users(
        folder / "users",
        [User(name, hash_password(f"word-of-{name}")) for name in ("ann", "bob")],
    )
    key = {
        "kty": "oct",
        "k": jwt.utils.base64url_encode(SECRET.encode()).decode(),
        "alg": "HS256",
        "kid": "k",
    }
    (folder / "keys").write_text(json.dumps({"keys": [key]}))
    (folder / "pyrite.toml").write_text(CONFIG)
    with BrokerProcess("--config", "pyrite.toml", *LISTEN, "--data", "data", cwd=folder) as broker:
        yield broker
        log = "\n".join(broker.log)
        assert "internal error" not in log
        assert "word-of" not in log, "no password is logged"


@pytest.fixture
def api(guarded: BrokerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.urls[HTTP], timeout=30) as client:
        yield client


def raw(broker: BrokerProcess, data: bytes, patience: float = 10.0) -> bytes:
    """Send bytes, and return everything until the connection is closed."""
    with socket.create_connection(("127.0.0.1", broker.port(HTTP)), timeout=patience) as one:
        one.sendall(data)
        got = b""
        try:
            while part := one.recv(65_536):
                got += part
        except ConnectionResetError:
            pass
        return got


def healthy(one: socket.socket) -> None:
    """Require a response on a connection that stays open."""
    one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    got = b""
    while not got.endswith(b'{"status":"ok"}'):
        part = one.recv(65_536)
        assert part, "the connection was closed"
        got += part


# Who may


def test_a_request_without_login_is_told_to_log_in(api: httpx.Client) -> None:
    for path in ("clients", "topics", "topics/a", "tree", "streams", "streams/default/messages"):
        answer = api.get(f"/api/v1/{path}")
        assert answer.status_code == 401, path
        assert answer.json()["detail"] == "a user name and password are required"
        assert answer.headers["www-authenticate"].startswith('Basic realm="pyrite", charset="UTF-8", Bearer')
    found = api.get("/api/v1/broker").json()
    assert (found["users"], found["user"]) == (True, None)
    assert api.get("/health").status_code == 200
    assert api.get("/ready").status_code == 200
    assert api.get("/metrics").status_code == 200
    scripted = api.get("/api/v1/clients", headers={"Sec-Fetch-Dest": "empty"})
    assert "Basic" not in scripted.headers["www-authenticate"]


def test_passwords_and_tokens_are_accepted(api: httpx.Client) -> None:
    assert api.get("/api/v1/broker", auth=("ann", "word-of-ann")).json()["user"] == "ann"
    assert api.get("/api/v1/clients", auth=("ann", "word-of-ann")).status_code == 200
    token = jwt.encode({"sub": "ann", "exp": time.time() + 60}, SECRET, "HS256", {"kid": "k"})
    bearer = {"Authorization": f"Bearer {token}"}
    assert api.get("/api/v1/broker", headers=bearer).json()["user"] == "ann"
    for given in ("Bearer x", "Bearer", "Basic", "Basic !", "Basic YQ==", "Digest x", "Basic /zo="):
        assert api.get("/api/v1/broker", headers={"Authorization": given}).status_code == 401, given
    api.get("/api/v1/broker", auth=("ann", "word-of-ann"))  # which has failures forgotten


def test_a_refusal_names_the_missing_permission(api: httpx.Client) -> None:
    bob = ("bob", "word-of-bob")
    answer = api.get("/api/v1/clients", auth=bob)
    assert (answer.status_code, answer.json()["detail"]) == (403, "not authorized: admin '#'")
    answer = api.post("/api/v1/publish", json={"topic": "ann", "payload": ""}, auth=bob)
    assert (answer.status_code, answer.json()["detail"]) == (403, "not authorized: publish 'ann'")
    assert api.post("/api/v1/publish", json={"topic": "bob/x", "payload": ""}, auth=bob).status_code == 200
    answer = api.get("/api/v1/streams/default/messages", auth=bob)
    assert (answer.status_code, answer.json()["detail"]) == (403, "not authorized: pull '#'")
    for path, right in {
        "topics": "subscribe '#'",
        "topics/bob/x": "subscribe 'bob/x'",
        "tree": "subscribe '#'",
        "tree?below=bob": "subscribe 'bob/#'",
    }.items():
        answer = api.get(f"/api/v1/{path}", auth=bob)
        assert (answer.status_code, answer.json()["detail"]) == (403, f"not authorized: {right}"), path
    asked = {"filter": "bob/#"}
    answer = api.post("/api/v1/consumers/bobs/pull", json=asked, auth=bob)
    assert (answer.status_code, answer.json()["detail"]) == (403, "not authorized: pull")
    assert api.post("/api/v1/consumers/bobs/pull", json=asked, auth=("ann", "word-of-ann")).status_code == 200
    assert api.post("/api/v1/consumers/bobs/pull", json={}, auth=bob).status_code == 403
    assert api.post("/api/v1/consumers/bobs/acknowledge", json={"offset": 0}, auth=bob).status_code == 403


def test_too_many_wrong_passwords_are_refused_unchecked(tmp_path: Path) -> None:
    write_users(tmp_path / "users", [User("ann", hash_password("word-of-ann"))])
    (tmp_path / "pyrite.toml").write_text("[access]\nusers = 'users'\n")
    with (
        BrokerProcess(
            "--config", "pyrite.toml", "--listen=http://127.0.0.1:0", "--ephemeral", cwd=tmp_path
        ) as broker,
        httpx.Client(base_url=broker.urls[0]) as api,
    ):
        details = [api.get("/api/v1/broker", auth=("ann", f"guess {n}")).json()["detail"] for n in range(6)]
        assert details[:5] == ["wrong user name or password"] * 5
        assert "too many failed log-ins; try again" in details[5]
        forged = {"X-Forwarded-For": "192.0.2.1", "Forwarded": "for=192.0.2.1"}
        answer = api.get("/api/v1/broker", auth=("ann", "guess"), headers=forged)
        assert "too many failed log-ins; try again" in answer.json()["detail"]
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")


def test_removed_users_are_refused(tmp_path: Path) -> None:
    write_users(
        tmp_path / "users",
        [User(name, hash_password(f"word-of-{name}")) for name in ("ann", "bob")],
    )
    (tmp_path / "pyrite.toml").write_text("[access]\nusers = 'users'\n")
    with (
        BrokerProcess(
            "--config", "pyrite.toml", "--listen=http://127.0.0.1:0", "--ephemeral", cwd=tmp_path
        ) as broker,
        httpx.Client(base_url=broker.urls[0]) as api,
    ):
        assert api.get("/api/v1/broker", auth=("bob", "word-of-bob")).json()["user"] == "bob"
        write_users(tmp_path / "users", [User("ann", hash_password("word-of-ann"))])
        broker.process.send_signal(signal.SIGHUP)
        wait_until(
            lambda: api.get("/api/v1/broker", auth=("bob", "word-of-bob")).status_code == 401,
            "bob is not known any more",
        )
        assert api.get("/api/v1/broker", auth=("ann", "word-of-ann")).json()["user"] == "ann"


def test_an_authenticator_plug_in_decides(tmp_path: Path) -> None:
    (tmp_path / "doorman.py").write_text(PLUGIN)
    (tmp_path / "pyrite.toml").write_text("[mqtt]\nauthenticator = 'doorman:make'\n")
    with (
        BrokerProcess("--config", "pyrite.toml", *LISTEN, "--data", "data", cwd=tmp_path) as broker,
        httpx.Client(base_url=broker.urls[HTTP], timeout=10) as api,
    ):
        for _ in range(2):  # a defect is no reason to leave the next one waiting
            answer = api.get("/api/v1/broker", auth=("broken", "x"))
            assert (answer.status_code, answer.json()["detail"]) == (500, "internal error")
        assert api.get("/api/v1/streams", auth=("ann", "wrong")).status_code == 401
        message = {"topic": "private/x", "payload": "x"}
        assert api.post("/api/v1/publish", json=message, auth=("ann", "secret")).status_code == 200
        assert api.post("/api/v1/publish", json=message, auth=("bob", "secret")).status_code == 403
        assert "secret" not in " ".join(broker.log)


def test_requests_from_pages_of_other_sites_are_refused(api: httpx.Client) -> None:
    assert api.get("/api/v1/broker", headers={"Host": "rebound.example"}).status_code == 421
    assert api.get("/api/v1/broker", headers={"Host": "localhost:1"}).status_code == 200
    body = {"topic": "bob/x", "payload": ""}
    evil = {"Origin": "https://evil.example"}
    answer = api.post("/api/v1/publish", json=body, headers=evil, auth=("ann", "word-of-ann"))
    assert (answer.status_code, "evil.example" in answer.json()["detail"]) == (403, True)
    ours = {"Origin": str(api.base_url).rstrip("/")}
    assert (
        api.post("/api/v1/publish", json=body, headers=ours, auth=("ann", "word-of-ann")).status_code == 200
    )
    plain = {"Content-Type": "text/plain"}
    answer = api.post("/api/v1/publish", content=json.dumps(body), headers=plain, auth=("ann", "word-of-ann"))
    assert answer.status_code == 415
    assert "access-control-allow-origin" not in answer.headers


# Bounds


def test_payloads_and_bodies_are_bounded(api: httpx.Client) -> None:
    auth = ("ann", "word-of-ann")
    whole = api.post("/api/v1/publish", json={"topic": "a", "payload": "x" * 1_000}, auth=auth)
    assert whole.status_code == 200
    answer = api.post("/api/v1/publish", json={"topic": "a", "payload": "x" * 1_001}, auth=auth)
    assert (answer.status_code, answer.json()["detail"]) == (413, "the payload is larger than 1000 bytes")
    answer = api.post("/api/v1/publish", json={"topic": "a", "payload": "x" * 1_000_000}, auth=auth)
    assert answer.status_code == 413
    assert "the body is larger than" in answer.json()["detail"]
    chunks = iter([b" " * 10_000] * 100)
    kind = {"Content-Type": "application/json"}
    assert api.post("/api/v1/publish", content=chunks, headers=kind, auth=auth).status_code == 413
    assert api.get("/health").status_code == 200


def test_a_body_declared_too_large_is_not_read(guarded: BrokerProcess) -> None:
    head = b"POST /api/v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert raw(guarded, head + b"Content-Length: 99999999999\r\n\r\n").startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(("hosts", "status"), [([], b"421"), (["localhost", "other.example"], b"400")])
def test_a_request_with_several_hosts_is_refused(
    guarded: BrokerProcess, hosts: list[str], status: bytes
) -> None:
    lines = "".join(f"Host: {one}\r\n" for one in hosts)
    got = raw(guarded, f"GET /health HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode())
    assert got.split(b" ")[1] == status


def test_request_heads_are_bounded(guarded: BrokerProcess) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    assert raw(guarded, head + b"X: " + b"x" * 30_000 + b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert raw(guarded, head + b"X: " + b"x" * 40_000).startswith(b"HTTP/1.1 431 ")
    many = b"".join(b"X-%d: 1\r\n" % number for number in range(5_000))
    assert raw(guarded, head + many).startswith(b"HTTP/1.1 431 ")


def test_slow_requests_are_closed(guarded: BrokerProcess) -> None:
    for begun in (b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\n"):
        began = time.monotonic()
        assert raw(guarded, begun) == b""
        assert 0.4 < time.monotonic() - began < 9
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", guarded.port(HTTP)), timeout=10) as one:
        healthy(one)
        one.sendall(b"GET /hea")  # the second request takes too long as well
        assert one.recv(65_536) == b""
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "garbage",
    [b"\x00" * 100, b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n"],
)
def test_bytes_that_are_not_http_are_refused(
    guarded: BrokerProcess, api: httpx.Client, garbage: bytes
) -> None:
    assert raw(guarded, garbage)[:12] in (b"HTTP/1.1 400", b"")
    assert api.get("/health").status_code == 200


@pytest.mark.parametrize("line", ["BREW /", "GET /\xe4", "GET /api/v1/topics?filter=\xe4"])
def test_malformed_http_is_answered_with_the_reason(guarded: BrokerProcess, line: str) -> None:
    got = raw(guarded, f"{line} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert b"application/problem+json" in got
    assert b"a known method" in got


def test_pipelined_requests_are_answered_in_order(guarded: BrokerProcess) -> None:
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
    got = raw(guarded, one % b"" * 9 + one % b"Connection: close\r\n")
    assert got.count(b'{"status":"ok"}') == 10


def test_connections_from_one_address_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text("[limits]\nmax_connections_per_address = 2\n")
    with BrokerProcess(
        "--config", "pyrite.toml", "--listen=http://127.0.0.1:0", "--ephemeral", cwd=tmp_path
    ) as broker:
        where = ("127.0.0.1", broker.port(0))
        sockets = [socket.create_connection(where, timeout=10) for _ in range(2)]
        try:
            for one in sockets:
                healthy(one)
            with socket.create_connection(where, timeout=10) as third:
                try:
                    third.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    assert third.recv(65_536) == b""
                except ConnectionError:
                    pass  # it was closed at once
            healthy(sockets[0])
        finally:
            for one in sockets:
                one.close()


# Life and death


def test_the_first_connection_starts_the_process_and_the_next_one_after_its_death(tmp_path: Path) -> None:
    with BrokerProcess(*LISTEN, "--data", str(tmp_path / "data")) as broker:
        assert children(broker) == []
        with httpx.Client(base_url=broker.urls[HTTP]) as api:
            until_it_answers(api)
            (child,) = children(broker)
            os.kill(child, signal.SIGKILL)
            until_it_answers(api)
            assert api.post("/api/v1/publish", json={"topic": "a", "payload": "x"}).json()["offset"] == 0
        assert children(broker) != [child]
        assert any("HTTP process has ended and is started again" in line for line in broker.log)
        assert broker.stop() == 0


def test_the_process_ends_with_the_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(*LISTEN, "--data", str(tmp_path / "data"))
    assert_it_ends_with_its_broker(broker, HTTP)


def test_the_broker_stops_while_requests_wait(tmp_path: Path) -> None:
    with BrokerProcess(*LISTEN, "--data", str(tmp_path / "data")) as broker:
        with socket.create_connection(("127.0.0.1", broker.port(HTTP)), timeout=10) as one:
            body = b'{"filter": "a", "wait": 30}'
            one.sendall(
                b"POST /api/v1/consumers/c/pull HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            metrics = f"{broker.urls[HTTP]}/metrics"
            wait_until(lambda: "pyrite_consumers 1" in httpx.get(metrics).text, "the pull waits")
            began = time.monotonic()
            assert broker.stop() == 0
            assert time.monotonic() - began < 15, "the pull would wait for 30 s"
        assert not any("Traceback" in line for line in broker.log)


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RuntimeError, match=f"cannot listen on {url}: Address already in use"):
            BrokerProcess(f"--listen={url}", "--data", str(tmp_path / "data"))


def test_new_certificates_are_used(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context()
    authority.configure_trust(context)
    server = tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(server))
    (tmp_path / "pyrite.toml").write_text('[tls]\ncertificate = "server.pem"\n')
    listen = ("--listen=https://127.0.0.1:0", "--listen=ws://127.0.0.1:0", "--listen=wss://127.0.0.1:0")
    with BrokerProcess("--config", "pyrite.toml", *listen, "--ephemeral", cwd=tmp_path) as broker:
        with httpx.Client(base_url=broker.urls[0], verify=context) as api:
            found = api.get("/api/v1/broker").json()
            assert found["websocket"] == broker.urls[2], "a page from https opens no ws"
        before = _serial(broker.port(0), context)
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(server))
        broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: _serial(broker.port(0), context) != before, "the new certificate is shown")


def _serial(port: int, context: ssl.SSLContext) -> object:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        certificate = secure.getpeercert()
        assert certificate is not None
        return certificate["serialNumber"]


@pytest.mark.parametrize("qos", [0, 1])
def test_a_full_disk_is_reported(tmp_path: Path, qos: int) -> None:
    try:
        disk = SmallDisk(tmp_path)
    except CannotMount as error:
        pytest.skip(str(error))
    with (
        disk,
        BrokerProcess(*LISTEN, "--data", str(disk.path / "data"), before=disk.before) as broker,
        httpx.Client(base_url=broker.urls[HTTP], timeout=30) as api,
    ):
        payload = base64.b64encode(random.Random(1).randbytes(50_000)).decode()
        message = {"topic": "a", "payload_base64": payload, "qos": qos}
        assert api.post("/api/v1/publish", json=message).status_code == 200
        disk.fill()
        for _ in range(20):
            answer = api.post("/api/v1/publish", json=message)
            if answer.status_code != 200:
                break
        assert answer.status_code == 507
        assert answer.headers["content-type"] == "application/problem+json"
        ready = api.get("/ready")
        assert ready.status_code == 503
        assert ready.json()["reason"]
        assert "pyrite_log_failing 1" in api.get("/metrics").text
        assert api.get("/api/v1/streams").json()["streams"][0]["error"]


def test_unread_responses_are_bounded(tmp_path: Path) -> None:
    """Large responses wait for their readers; beyond a bound, further requests are refused."""
    with (
        BrokerProcess(*LISTEN, "--data", str(tmp_path / "data")) as broker,
        httpx.Client(base_url=broker.urls[HTTP], timeout=60) as api,
    ):
        payload = base64.b64encode(random.Random(1).randbytes(6 * 1024 * 1024)).decode()
        for _ in range(2):
            assert api.post("/api/v1/publish", json={"topic": "a", "payload": payload}).status_code == 200
        ask = b"GET /api/v1/streams/default/messages HTTP/1.1\r\nHost: localhost\r\n\r\n"
        sockets = [socket.create_connection(("127.0.0.1", broker.port(HTTP)), timeout=60) for _ in range(20)]
        try:
            statuses = []
            for one in sockets:
                one.sendall(ask)
                statuses.append(one.recv(12))
            assert set(statuses) == {b"HTTP/1.1 200", b"HTTP/1.1 503"}
            assert api.get("/health").status_code == 200
        finally:
            for one in sockets:
                one.close()

        def messages() -> list[dict[str, str]]:
            return list(api.get("/api/v1/streams/default/messages").json().get("messages", []))

        assert wait_until(messages, "connections that are gone hold nothing")[0]["payload"] == payload


def test_dropped_messages_are_skipped_and_reported_once(tmp_path: Path) -> None:
    stream = "[[stream]]\nname = 'default'\nsegment_bytes = 65536\nretention_bytes = 131072\n"
    (tmp_path / "pyrite.toml").write_text(stream)
    arguments = ("--config=pyrite.toml", "--data=data", "--listen=http://127.0.0.1:0")
    with (
        BrokerProcess(*arguments, cwd=tmp_path) as broker,
        httpx.Client(base_url=broker.urls[0], timeout=30) as api,
    ):
        payload = base64.b64encode(os.urandom(40_000)).decode()
        for _ in range(12):
            api.post("/api/v1/publish", json={"topic": "a", "payload_base64": payload}).raise_for_status()
        wait_until(
            lambda: api.get("/api/v1/streams").json()["streams"][0]["first"] >= 5, "messages are dropped"
        )
        found = api.get("/api/v1/streams/default/messages", params={"from": 0, "limit": 1}).json()
        first = found["messages"][0]["offset"]
        said = f"stream default: offsets 0 to {first - 1} are not kept any longer"
        assert found["skipped"] == [said]
        assert found["next"] == first + 1

"""SIGHUP reloads users, rules and certificates, also for connected clients."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import jwt
import pyarrow as pa
import pytest
import trustme

from pyrite.access.guard import Guard
from pyrite.access.tokens import LEEWAY
from pyrite.access.users import User, read_users, write_users
from pyrite.broker.access import Accept, Credentials, Refuse
from pyrite.broker.core import Broker
from pyrite.client import BlockingClient, ConnectError, FlightLog
from pyrite.client.line import LineClient, LineError
from pyrite.protocols.line.connection import LineConnection
from pyrite.protocols.line.options import LineOptions
from pyrite.storage.query import Query
from tests.conformance.client import Client, Closed, Tcp
from tests.conformance.wire import PUBLISH, PUBREL, Will, connect_packet
from tests.support.core import RecordingTransport
from tests.support.passwords import quick_hash
from tests.support.process import BrokerProcess
from tests.support.waiting import let_pass, wait_until

pytestmark = pytest.mark.slow

LISTEN = [f"--listen={scheme}://127.0.0.1:0" for scheme in ("mqtt", "line", "udp")]


def rules(*subscribe: str) -> str:
    access = "[access]\nusers = 'users'\n[[access.rule]]\nusers = ['*']\npublish = ['#']\n"
    return f"{access}subscribe = {[*subscribe]}\n"


def users(folder: Path, *names: str) -> None:
    known = read_users(folder / "users") if (folder / "users").exists() else {}
    write_users(
        folder / "users", [known.get(name) or User(name, quick_hash(f"{name}-word")) for name in names]
    )


def hang_up_and_wait(broker: BrokerProcess, said: str) -> None:
    seen = sum(said in line for line in broker.log)
    broker.process.send_signal(signal.SIGHUP)
    wait_until(lambda: sum(said in line for line in broker.log) > seen)


def test_users_and_rules_are_reloaded(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text(rules("a", "b"))
    users(tmp_path, "ann", "bob")
    with BrokerProcess("--config", "pyrite.toml", *LISTEN, "--ephemeral", cwd=tmp_path) as broker:
        ann = LineClient("127.0.0.1", broker.port(1))
        bob = LineClient("127.0.0.1", broker.port(1))
        over_udp = LineClient("127.0.0.1", broker.port(2), udp=True)
        for client, name in ((ann, "ann"), (bob, "bob"), (over_udp, "bob")):
            client.connect(f"{name}-{client is over_udp}", user=name, password=f"{name}-word")
            client.subscribe("a")
            client.subscribe("b")
        (tmp_path / "pyrite.toml").write_text(rules("a"))
        users(tmp_path, "ann", "eve")
        hang_up_and_wait(broker, "users, rules, certificates and quotas were reloaded")
        with BlockingClient(broker.urls[0], username="eve", password="eve-word") as eve:
            eve.publish("b", b"1", qos=1)
            eve.publish("a", b"2", qos=1)
        assert [message.payload for message in ann.messages(timeout=2)] == [b"2"]
        wait_until(lambda: bob.closed)
        for gone in (bob, over_udp):
            assert list(gone.messages(timeout=0.5)) == []
        with pytest.raises(ConnectError):
            BlockingClient(broker.urls[0], username="bob", password="bob-word").connect()
        with pytest.raises(LineError, match="not authorized"):
            ann.subscribe("b")
        (tmp_path / "pyrite.toml").write_text(rules("a/#/b"))
        hang_up_and_wait(broker, "the settings were not reloaded")
        ann.subscribe("a")
        for client in (ann, bob, over_udp):
            client.close()


def test_a_resumed_session_has_the_current_permissions(tmp_path: Path) -> None:
    config = rules("a") + "[[access.rule]]\nusers = ['ann']\nsubscribe = ['secret']\n"
    (tmp_path / "pyrite.toml").write_text(config)
    users(tmp_path, "ann", "bob")
    with BrokerProcess("--config", "pyrite.toml", *LISTEN, "--ephemeral", cwd=tmp_path) as broker:
        with LineClient("127.0.0.1", broker.port(1)) as ann:
            ann.connect("shared-id", resume=True, ttl=60, user="ann", password="ann-word")
            ann.subscribe("secret")
            ann.subscribe("a")
        with LineClient("127.0.0.1", broker.port(1)) as bob:
            bob.connect("shared-id", resume=True, ttl=60, user="bob", password="bob-word")
            bob.publish("secret", b"1")
            bob.publish("a", b"2")
            assert [message.payload for message in bob.messages(timeout=1)] == [b"2"]


@pytest.mark.parametrize("storage", ["--ephemeral", "--data=data"])
def test_a_user_that_takes_over_a_session_gets_only_permitted_messages(tmp_path: Path, storage: str) -> None:
    config = rules("a") + "[[access.rule]]\nusers = ['ann']\nsubscribe = ['secret']\n"
    (tmp_path / "pyrite.toml").write_text(config)
    users(tmp_path, "ann", "bob")

    def connected(name: str, client_id: str) -> Client:
        client = Client(Tcp("127.0.0.1", broker.port()))
        proof = {"username": name, "password": f"{name}-word".encode()}
        client.connect(client_id, clean=False, session_expiry_interval=60, receive_maximum=2, **proof)
        return client

    with BrokerProcess("--config", "pyrite.toml", *LISTEN, storage, cwd=tmp_path) as broker:
        publisher, ann = connected("ann", "publisher"), connected("ann", "shared-id")
        ann.subscribe("secret", "a", qos=2)
        for topic, qos in (("secret", 1), ("secret", 2), ("secret", 1), ("a", 1)):
            publisher.publish(topic, topic.encode(), qos=qos)
        assert [ann.expect(PUBLISH).qos for _ in range(2)] == [1, 2]
        ann.close()
        bob = connected("bob", "shared-id")
        assert bob.connack is not None
        assert bob.connack.session_present
        assert bob.expect(PUBREL).packet_id == 2, "a half received message is ended, and not told"
        assert bob.receive().topic == "a"
        publisher.close()
        bob.close()


def test_queued_messages_are_not_sent_without_permission(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text(rules("a", "b"))
    users(tmp_path, "ann")
    with BrokerProcess("--config", "pyrite.toml", *LISTEN, "--ephemeral", cwd=tmp_path) as broker:
        ann, publisher = (Client(Tcp("127.0.0.1", broker.port())) for _ in range(2))
        for client, client_id in ((ann, "ann"), (publisher, "publisher")):
            client.connect(client_id, receive_maximum=1, username="ann", password=b"ann-word")
        ann.subscribe("a", "b", qos=1)
        for topic in ("a", "b", "a"):
            publisher.publish(topic, qos=1)
        first = ann.expect(PUBLISH)
        (tmp_path / "pyrite.toml").write_text(rules("a"))
        hang_up_and_wait(broker, "were reloaded")
        ann.acknowledge(first)
        assert ann.receive().topic == "a"
        ann.close()
        publisher.close()


def test_certificates_are_reloaded(tmp_path: Path) -> None:
    def renew() -> bytes:
        authority = trustme.CA()
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
            str(tmp_path / "server.pem")
        )
        return authority.cert_pem.bytes()

    def trusted(certificate: bytes) -> bool:
        context = ssl.create_default_context(cadata=certificate.decode())
        with socket.create_connection(("127.0.0.1", broker.port()), timeout=10) as plain:
            try:
                context.wrap_socket(plain, server_hostname="127.0.0.1").close()
            except ssl.SSLError:
                return False
        return True

    first = renew()
    (tmp_path / "pyrite.toml").write_text("[tls]\ncertificate = 'server.pem'\n")
    listen = ("--listen=mqtts://127.0.0.1:0", "--ephemeral")
    with BrokerProcess("--config", "pyrite.toml", *listen, cwd=tmp_path) as broker:
        assert trusted(first)
        second = renew()
        assert not trusted(second)
        hang_up_and_wait(broker, "were reloaded")
        assert trusted(second)
        assert not trusted(first)
        (tmp_path / "server.pem").write_text("nonsense")
        hang_up_and_wait(broker, "the settings were not reloaded")
        assert trusted(second)


def test_an_invalid_file_leaves_all_settings_unchanged(tmp_path: Path) -> None:
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        str(tmp_path / "server.pem")
    )
    (tmp_path / "pyrite.toml").write_text(rules("a") + "[tls]\ncertificate = 'server.pem'\n")
    users(tmp_path, "ann")
    listen = ("--listen=mqtt://127.0.0.1:0", "--listen=mqtts://127.0.0.1:0", "--ephemeral")
    with BrokerProcess("--config", "pyrite.toml", *listen, cwd=tmp_path) as broker:
        users(tmp_path, "bob")
        (tmp_path / "server.pem").write_text("nonsense")
        hang_up_and_wait(broker, "the settings were not reloaded")
        with BlockingClient(broker.urls[0], username="ann", password="ann-word"):
            pass
        with pytest.raises(ConnectError):
            BlockingClient(broker.urls[0], username="bob", password="bob-word").connect()


def test_a_signal_during_the_start_reloads_after_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    (tmp_path / "slow.py").write_text(
        "import sys\n"
        "from pyrite.broker.access import Access\n"
        "def make():\n"
        "    print('starting', file=sys.stderr, flush=True)\n"
        "    open('go').close()\n"  # a pipe: it opens when the test opens the other end
        "    return Access()\n"
    )
    (tmp_path / "pyrite.toml").write_text("[mqtt]\nauthenticator = 'slow:make'\n")
    arguments = ("--config", "pyrite.toml", *LISTEN, "--ephemeral")
    with BrokerProcess(*arguments, cwd=tmp_path, wait=False) as broker:
        wait_until(lambda: "starting" in broker.log)
        broker.process.send_signal(signal.SIGHUP)
        (tmp_path / "go").open("w").close()
        broker.wait_until_ready()
        wait_until(lambda: any("were reloaded" in line for line in broker.log))
        assert broker.stop() == 0


def test_rules_added_at_a_reload_apply_to_connected_clients(tmp_path: Path) -> None:
    """Names that were not verified before need a password now. A file without rules keeps the rules."""
    (tmp_path / "pyrite.toml").write_text("")
    users(tmp_path, "ann")
    listen = [f"--listen={scheme}://127.0.0.1:0" for scheme in ("mqtt", "line", "flight", "http")]
    with BrokerProcess("--config", "pyrite.toml", "--data", "data", *listen, cwd=tmp_path) as broker:
        with FlightLog(broker.urls[2]) as log:
            assert log.table(Query()).num_rows == 0
        anonymous, impostor = (LineClient("127.0.0.1", broker.port(1)) for _ in range(2))
        anonymous.connect("anonymous")
        impostor.connect("impostor", user="ann", password="wrong-word")
        listed = rules("a").replace("[access]", "[access]\nanonymous = true")
        (tmp_path / "pyrite.toml").write_text(listed)
        hang_up_and_wait(broker, "users, rules, certificates and quotas were reloaded")
        wait_until(lambda: impostor.closed)
        with pytest.raises(LineError, match="not authorized"):  # the rule is for users
            anonymous.publish("a", b"1")
        assert not anonymous.closed
        with pytest.raises(ConnectError):
            BlockingClient(broker.urls[0], username="ann", password="wrong-word").connect()
        with BlockingClient(broker.urls[0], username="ann", password="ann-word") as ann:
            ann.publish("a", b"2", qos=1)
        with FlightLog(broker.urls[2]) as log, pytest.raises(PermissionError, match="not authorized"):
            log.table(Query())
        (tmp_path / "pyrite.toml").write_text("")
        hang_up_and_wait(broker, "the access list was removed from the configuration")
        with pytest.raises(ConnectError):
            BlockingClient(broker.urls[0], username="ann", password="wrong-word").connect()
        for client in (anonymous, impostor):
            client.close()


@pytest.mark.parametrize("qos", [0, 1])
def test_new_rules_apply_to_a_publisher_that_repeats_its_topic(tmp_path: Path, qos: int) -> None:
    (tmp_path / "pyrite.toml").write_text("")
    users(tmp_path, "ann")
    with BrokerProcess("--config", "pyrite.toml", *LISTEN, "--ephemeral", cwd=tmp_path) as broker:
        anonymous = Client(Tcp("127.0.0.1", broker.port()))
        anonymous.connect("anonymous")
        anonymous.publish("a", b"1", qos=qos)
        anonymous.ping()
        (tmp_path / "pyrite.toml").write_text(
            rules("#").replace("[access]", "[access]\nanonymous = true")  # whom no rule is for
        )
        hang_up_and_wait(broker, "users, rules, certificates and quotas were reloaded")
        with LineClient("127.0.0.1", broker.port(1)) as ann:
            ann.connect("ann", user="ann", password="ann-word")
            ann.subscribe("#")
            anonymous.publish("a", b"2", qos=qos)
            anonymous.ping()
            ann.publish("b", b"3")
            assert next(ann.messages(timeout=20)).payload == b"3"
        anonymous.close()


def test_a_removed_user_cannot_use_flight(tmp_path: Path) -> None:
    """A recent positive check of the password is not reused."""
    (tmp_path / "pyrite.toml").write_text(rules("#") + "pull = ['#']\n")
    users(tmp_path, "ann")
    listen = ("--listen=mqtt://127.0.0.1:0", "--listen=flight://127.0.0.1:0")
    with (
        BrokerProcess("--config", "pyrite.toml", "--data", "data", *listen, cwd=tmp_path) as broker,
        FlightLog(broker.urls[1], username="ann", password="ann-word") as log,
    ):
        assert log.table(Query()).num_rows == 0
        users(tmp_path, "bob")
        hang_up_and_wait(broker, "users, rules, certificates and quotas were reloaded")
        with pytest.raises(PermissionError, match="wrong user name or password"):
            log.streams()


@pytest.mark.parametrize("how", ["user", "rule", "token"])
def test_a_flight_read_ends_when_permission_is_withdrawn(tmp_path: Path, how: str) -> None:
    key = base64.urlsafe_b64encode(b"k" * 32).rstrip(b"=").decode()
    (tmp_path / "keys").write_text(json.dumps({"keys": [{"kty": "oct", "k": key, "alg": "HS256"}]}))
    config = rules("#").replace("[access]", "[access]\njwt_keys = 'keys'") + "pull = ['#']\n"
    (tmp_path / "pyrite.toml").write_text(config)
    users(tmp_path, "ann", "bob")
    rows = pa.record_batch({"topic": ["a"] * 40, "payload": [bytes(100_000)] * 40})
    rows = rows.cast(pa.schema([("topic", pa.string()), ("payload", pa.binary())]))
    with BrokerProcess(
        "--config", "pyrite.toml", "--data", "data", "--listen=flight://127.0.0.1:0", cwd=tmp_path
    ) as broker:
        with FlightLog(broker.urls[0], username="bob", password="bob-word") as log:
            for number in range(10):  # more than the sockets on the way hold
                assert log.commit("s", number, log.stage("s", "p", rows.schema, [rows]).parts)
        until = time.time() + 4 - LEEWAY
        token = jwt.encode({"sub": "tim", "exp": until}, b"k" * 32, "HS256")
        login: dict[str, Any] = {"username": "ann", "password": "ann-word"}
        with FlightLog(broker.urls[0], **{"token": token} if how == "token" else login) as log:
            found = log.read(Query())
            read = next(found).num_rows
            if how == "token":
                let_pass(until + LEEWAY + 0.5 - time.time(), "the token expires")
            else:
                if how == "user":
                    users(tmp_path, "bob")
                else:
                    (tmp_path / "pyrite.toml").write_text(config.replace("pull = ['#']", ""))
                hang_up_and_wait(broker, "users, rules, certificates and quotas were reloaded")
                with FlightLog(broker.urls[0], username="bob", password="bob-word") as other:
                    other.streams()  # so the Flight process has heard of it
            rest: list[pa.RecordBatch] = []
            with pytest.raises(PermissionError, match=r"wrong|not authorized"):
                rest.extend(found)
            assert read + sum(batch.num_rows for batch in rest) < 400


@pytest.mark.parametrize("gone", [True, False])
def test_a_waiting_http_pull_needs_permission_when_a_message_comes(tmp_path: Path, gone: bool) -> None:
    config = rules("#") + "pull = ['#']\n"
    (tmp_path / "pyrite.toml").write_text(config)
    users(tmp_path, "ann", "bob")
    with (
        BrokerProcess(
            "--config", "pyrite.toml", "--data", "data", "--listen=http://127.0.0.1:0", cwd=tmp_path
        ) as broker,
        ThreadPoolExecutor(1) as aside,
        httpx.Client(base_url=broker.urls[0], timeout=60) as http,
    ):

        def pull() -> httpx.Response:
            wish = {"filter": "#", "wait": 30}
            return httpx.post(
                f"{broker.urls[0]}/api/v1/consumers/c/pull", json=wish, auth=("ann", "ann-word"), timeout=60
            )

        def consumers() -> str:
            return http.get("/metrics", auth=("bob", "bob-word")).text

        waiting = aside.submit(pull)
        wait_until(lambda: "pyrite_consumers 1" in consumers())
        if gone:
            users(tmp_path, "bob")
        else:
            (tmp_path / "pyrite.toml").write_text(config.replace("pull = ['#']", ""))
        hang_up_and_wait(broker, "users, rules, certificates and quotas were reloaded")
        said = {"topic": "a", "payload": "x"}
        assert http.post("/api/v1/publish", json=said, auth=("bob", "bob-word")).status_code == 200
        assert waiting.result().status_code == (401 if gone else 403)


# Clients that would no longer be let in


def test_a_changed_password_disconnects_its_user(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text(rules("a"))
    users(tmp_path, "ann", "bob")
    with BrokerProcess("--config", "pyrite.toml", *LISTEN, "--ephemeral", cwd=tmp_path) as broker:
        ann, bob = (LineClient("127.0.0.1", broker.port(1)) for _ in range(2))
        ann.connect("ann", user="ann", password="ann-word")
        bob.connect("bob", user="bob", password="bob-word")
        kept = read_users(tmp_path / "users")["bob"]
        write_users(tmp_path / "users", [User("ann", quick_hash("other-word")), kept])
        hang_up_and_wait(broker, "were reloaded")
        wait_until(lambda: ann.closed)
        bob.subscribe("a")
        assert not bob.closed
        with BlockingClient(broker.urls[0], username="ann", password="other-word"):
            pass
        for client in (ann, bob):
            client.close()


def test_tokens_of_a_removed_key_are_refused(tmp_path: Path) -> None:
    def jwks(*names: str) -> None:
        encoded = [base64.urlsafe_b64encode(name.encode() * 32).rstrip(b"=").decode() for name in names]
        known = [
            {"kty": "oct", "k": key, "alg": "HS256", "kid": name}
            for name, key in zip(names, encoded, strict=True)
        ]
        (tmp_path / "keys").write_text(json.dumps({"keys": known}))

    def token(name: str) -> str:
        return jwt.encode({"sub": name, "exp": time.time() + 600}, name * 32, "HS256", {"kid": name})

    jwks("x", "y")
    (tmp_path / "pyrite.toml").write_text(
        "[access]\njwt_keys = 'keys'\n[[access.rule]]\nusers = ['*']\nsubscribe = ['#']\n"
    )
    with BrokerProcess("--config", "pyrite.toml", *LISTEN, "--ephemeral", cwd=tmp_path) as broker:
        clients = {name: LineClient("127.0.0.1", broker.port(1)) for name in "xy"}
        for name, client in clients.items():
            client.connect(name, user=name, password=token(name))
        jwks("y", "z")
        hang_up_and_wait(broker, "were reloaded")
        wait_until(lambda: clients["x"].closed)
        clients["y"].subscribe("a")
        assert not clients["y"].closed
        for client in clients.values():
            client.close()


@pytest.mark.parametrize("gone", [False, True], ids=["the right", "the user"])
def test_a_will_is_published_only_with_current_permission(tmp_path: Path, gone: bool) -> None:
    may = "[[access.rule]]\nusers = ['ann']\npublish = ['doors']\n[[access.rule]]\nusers = ['*']\n"
    config = "[access]\nusers = 'users'\n" + may + "subscribe = ['#']\npublish = ['other']\n"
    (tmp_path / "pyrite.toml").write_text(config)
    users(tmp_path, "ann", "bob")
    with BrokerProcess("--config", "pyrite.toml", *LISTEN, "--ephemeral", cwd=tmp_path) as broker:
        bob = LineClient("127.0.0.1", broker.port(1))
        bob.connect("bob", user="bob", password="bob-word")
        bob.subscribe("#")
        leaving = {}
        for topic in ("doors", "other"):
            packet = connect_packet(topic, username="ann", password=b"ann-word", will=Will(topic, b"open"))
            leaving[topic] = socket.create_connection(("127.0.0.1", broker.port()), timeout=20)
            leaving[topic].sendall(packet)
            assert leaving[topic].recv(1_000)[0] == 0x20
        if gone:
            kept = read_users(tmp_path / "users")["bob"]
            write_users(tmp_path / "users", [kept])
        else:
            (tmp_path / "pyrite.toml").write_text(config.replace("doors", "none"))
        hang_up_and_wait(broker, "were reloaded")
        for one in leaving.values():
            one.close()
        heard = [message.topic for message in bob.messages(timeout=2)]
        assert heard == ([] if gone else ["other"])
        bob.close()


def test_a_login_during_a_reload_is_decided_by_the_new_rules() -> None:
    waiting: list[tuple[Callable[[], object], Callable[[object], object]]] = []
    guard = Guard({"ann": User("ann", quick_hash("old"))}, [], anonymous=False)
    broker = Broker(access=guard, offload=lambda job, then: waiting.append((job, then)))
    verdicts: list[Accept | Refuse] = []
    broker.admission.decide(Credentials("c", "ann", b"old", "here"), verdicts.append)
    job, then = waiting.pop()
    verdict = job()
    guard.replace({"ann": User("ann", quick_hash("new"))}, [], False, None)
    broker.access_changed()
    then(verdict)
    assert verdicts == []
    job, then = waiting.pop()
    then(job())
    assert [type(one) for one in verdicts] == [Refuse]


def test_a_client_accepted_just_before_a_reload_is_checked_again() -> None:
    waiting: list[tuple[Callable[[], object], Callable[[object], object]]] = []
    guard = Guard({"ann": User("ann", quick_hash("old"))}, [], anonymous=False)
    broker = Broker(access=guard, offload=lambda job, then: waiting.append((job, then)))
    transport = RecordingTransport()
    connection = LineConnection(broker, LineOptions(), transport, "here", "here")
    connection.feed(b"Connect c user=ann password=old\nPublish a 1\nx\n")
    job, then = waiting.pop()
    then(job())
    guard.replace({"ann": User("ann", quick_hash("new"))}, [], False, None)
    broker.access_changed()
    broker.turns.take()
    assert not broker.sessions.by_id
    job, then = waiting.pop()
    then(job())
    broker.turns.take()
    assert transport.written.startswith(b"Error not-authorized wrong user name or password")
    assert transport.closed


# Certificates of clients


def shows(broker: BrokerProcess, server: trustme.CA, client: trustme.CA | None) -> int | None:
    """Return the CONNACK code over TLS; None if the certificate is refused."""
    context = ssl.create_default_context()
    server.configure_trust(context)
    if client is not None:
        client.issue_cert("ann@example.org").configure_cert(context)
    with socket.create_connection(("127.0.0.1", broker.port()), timeout=20) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as one:
                one.sendall(connect_packet("c"))
                return one.recv(1_000)[3]
        except (OSError, IndexError):
            return None


def test_authorities_of_client_certificates_are_reloaded(tmp_path: Path) -> None:
    server, first, second = trustme.CA(), trustme.CA(), trustme.CA()
    server.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    first.cert_pem.write_to_path(str(tmp_path / "first.pem"))
    first.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    second.cert_pem.write_to_path(str(tmp_path / "second.pem"))
    tls = "[tls]\ncertificate = 'server.pem'\nrequire_client_certificate = true\ncertificate_user = 'san'\n"
    rule = "[[access.rule]]\nusers = ['*']\nsubscribe = ['#']\n"
    (tmp_path / "pyrite.toml").write_text(f"{tls}client_ca = 'ca.pem'\n{rule}")
    listen = ("--listen=mqtts://127.0.0.1:0", "--ephemeral")
    with BrokerProcess("--config", "pyrite.toml", *listen, cwd=tmp_path) as broker:
        assert (shows(broker, server, first), shows(broker, server, second)) == (0, None)
        wait_until(lambda: any("certificate was refused" in line for line in broker.log))
        assert shows(broker, server, None) is None
        wait_until(lambda: any("no certificate" in line for line in broker.log))

        context = ssl.create_default_context()
        server.configure_trust(context)
        first.issue_cert("ann@example.org").configure_cert(context)
        with (
            socket.create_connection(("127.0.0.1", broker.port()), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as stays,
        ):
            stays.sendall(connect_packet("stays"))
            assert stays.recv(1_000)[0] == 0x20
            hang_up_and_wait(broker, "were reloaded")
            stays.sendall(b"\xc0\x00")
            assert stays.recv(1_000) == b"\xd0\x00", "nothing has changed"
            second.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
            hang_up_and_wait(broker, "were reloaded")
            assert stays.recv(1_000)[:3:2] == b"\xe0\x87", "it has to come again"
        assert (shows(broker, server, first), shows(broker, server, second)) == (None, 0)

        (tmp_path / "pyrite.toml").write_text(f"{tls}client_ca = 'first.pem'\n{rule}")
        hang_up_and_wait(broker, "were reloaded")
        assert (shows(broker, server, first), shows(broker, server, second)) == (0, None)


# The command line goes on to hold


def test_command_line_options_survive_a_reload(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text("listen = ['mqtt://0.0.0.0:0']\n")
    options = ("--config", "pyrite.toml", "--allow-anonymous", "--ephemeral")
    with BrokerProcess(*options, cwd=tmp_path) as broker:
        hang_up_and_wait(broker, "were reloaded")
        with BlockingClient(broker.urls[0].replace("0.0.0.0", "127.0.0.1")):
            pass


READS_AGAIN = """
import asyncio, os, signal
from pyrite.server.config import Config
from pyrite.server.run import serve

config = Config(listen=["mqtt://127.0.0.1:0"], ephemeral=True)

def say(line):
    if line == "pyrite ready":
        os.kill(os.getpid(), signal.SIGHUP)

def reread():
    os.kill(os.getpid(), signal.SIGTERM)
    return config

asyncio.run(serve(config, say, reread))
"""


def test_a_signal_at_the_end_of_the_start_is_not_lost() -> None:
    subprocess.run([sys.executable, "-c", READS_AGAIN], check=True, timeout=60)


def test_a_reload_can_exclude_anonymous_clients(tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text(rules("a").replace("[access]", "[access]\nanonymous = true"))
    users(tmp_path, "ann")
    with BrokerProcess("--config", "pyrite.toml", *LISTEN, "--ephemeral", cwd=tmp_path) as broker:
        anonymous = LineClient("127.0.0.1", broker.port(1))
        anonymous.connect("anonymous")
        (tmp_path / "pyrite.toml").write_text(rules("a"))
        hang_up_and_wait(broker, "were reloaded")
        wait_until(lambda: anonymous.closed)
        anonymous.close()


def test_an_exception_in_a_plug_in_loses_no_queued_message(tmp_path: Path) -> None:
    (tmp_path / "doorman.py").write_text(
        "from pathlib import Path\n"
        "from pyrite.broker.access import Access\n"
        "class Doorman(Access):\n"
        "    checks_topics = True\n"
        "    def may_subscribe(self, credentials, topic_filter):\n"
        "        return topic_filter == '#' or not Path('fault').read_text()\n"
    )
    (tmp_path / "fault").touch()
    (tmp_path / "pyrite.toml").write_text("[mqtt]\nauthenticator = 'doorman:Doorman'\n")

    def connected(client_id: str) -> Client:
        client = Client(Tcp("127.0.0.1", broker.port()))
        client.connect(client_id, clean=False, session_expiry_interval=60)
        return client

    with BrokerProcess("--config", "pyrite.toml", *LISTEN, "--data=data", cwd=tmp_path) as broker:
        ann, publisher = connected("ann"), connected("publisher")
        ann.subscribe("#", qos=1)
        publisher.publish("a", b"x", qos=1)
        assert ann.expect(PUBLISH).payload == b"x"
        ann.close()
        publisher.close()
        (tmp_path / "fault").unlink()
        refused = Client(Tcp("127.0.0.1", broker.port()))
        with closing(refused), suppress(Closed):  # it is closed sooner or later
            refused.connect("ann", clean=False, session_expiry_interval=60)
            refused.expect_disconnect(0x80)
        (tmp_path / "fault").touch()
        ann = connected("ann")
        assert ann.receive().payload == b"x"
        ann.close()

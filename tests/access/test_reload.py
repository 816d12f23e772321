"""SIGHUP: users, rules and certificates are read again, and are in force for those who are connected."""

from __future__ import annotations

import signal
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from pyrite.access.users import User, write_users
from pyrite.client import BlockingClient, ConnectError, FlightLog
from pyrite.client.line import LineClient, LineError
from pyrite.queries import Query
from tests.support.passwords import quick_hash
from tests.support.process import BrokerProcess

LISTEN = [f"--listen={scheme}://127.0.0.1:0" for scheme in ("mqtt", "line", "udp")]


def rules(*subscribe: str) -> str:
    access = "[access]\nusers = 'users'\n[[access.rule]]\nusers = ['*']\npublish = ['#']\n"
    return f"{access}subscribe = {[*subscribe]}\n"


def users(folder: Path, *names: str) -> None:
    write_users(folder / "users", [User(name, quick_hash(f"{name}-word")) for name in names])


def hang_up_and_wait(broker: BrokerProcess, said: str) -> None:
    seen = sum(said in line for line in broker.log)
    broker.process.send_signal(signal.SIGHUP)
    wait_until(lambda: sum(said in line for line in broker.log) > seen)


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_users_and_rules(tmp_path: Path) -> None:
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
        hang_up_and_wait(broker, "users, rules and certificates were read again")
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
        hang_up_and_wait(broker, "the settings were not read again")
        ann.subscribe("a")
        for client in (ann, bob, over_udp):
            client.close()


def test_a_session_that_is_resumed_has_what_its_client_may_have_now(tmp_path: Path) -> None:
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


def test_certificates(tmp_path: Path) -> None:
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
        hang_up_and_wait(broker, "were read again")
        assert trusted(second)
        assert not trusted(first)
        (tmp_path / "server.pem").write_text("nonsense")
        hang_up_and_wait(broker, "the settings were not read again")
        assert trusted(second)


def test_all_or_nothing(tmp_path: Path) -> None:
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        str(tmp_path / "server.pem")
    )
    (tmp_path / "pyrite.toml").write_text(rules("a") + "[tls]\ncertificate = 'server.pem'\n")
    users(tmp_path, "ann")
    listen = ("--listen=mqtt://127.0.0.1:0", "--listen=mqtts://127.0.0.1:0", "--ephemeral")
    with BrokerProcess("--config", "pyrite.toml", *listen, cwd=tmp_path) as broker:
        users(tmp_path, "bob")
        (tmp_path / "server.pem").write_text("nonsense")
        hang_up_and_wait(broker, "the settings were not read again")
        with BlockingClient(broker.urls[0], username="ann", password="ann-word"):
            pass
        with pytest.raises(ConnectError):
            BlockingClient(broker.urls[0], username="bob", password="bob-word").connect()


def test_an_access_list_where_there_was_none(tmp_path: Path) -> None:
    """Who gave a name was not asked whether it is theirs: now they are. And the list stays."""
    (tmp_path / "pyrite.toml").write_text("")
    users(tmp_path, "ann")
    listen = [f"--listen={scheme}://127.0.0.1:0" for scheme in ("mqtt", "line", "flight", "http")]
    with BrokerProcess("--config", "pyrite.toml", "--data", "data", *listen, cwd=tmp_path) as broker:
        with FlightLog(broker.urls[2]) as log:
            assert log.table(Query()).num_rows == 0
        somebody, impostor = (LineClient("127.0.0.1", broker.port(1)) for _ in range(2))
        somebody.connect("somebody")
        impostor.connect("impostor", user="ann", password="whatever")
        listed = rules("a").replace("[access]", "[access]\nanonymous = true")
        (tmp_path / "pyrite.toml").write_text(listed)
        hang_up_and_wait(broker, "users, rules and certificates were read again")
        wait_until(lambda: impostor.closed)
        with pytest.raises(LineError, match="not authorized"):  # the rule is for users
            somebody.publish("a", b"1")
        assert not somebody.closed
        with pytest.raises(ConnectError):
            BlockingClient(broker.urls[0], username="ann", password="whatever").connect()
        with BlockingClient(broker.urls[0], username="ann", password="ann-word") as ann:
            ann.publish("a", b"2", qos=1)
        with FlightLog(broker.urls[2]) as log, pytest.raises(PermissionError, match="not authorized"):
            log.table(Query())
        (tmp_path / "pyrite.toml").write_text("")
        hang_up_and_wait(broker, "there is no access list any more")
        with pytest.raises(ConnectError):
            BlockingClient(broker.urls[0], username="ann", password="whatever").connect()
        for client in (somebody, impostor):
            client.close()


def test_who_is_gone_reads_no_more_with_flight(tmp_path: Path) -> None:
    """Also if they were let in a moment ago, and would not be asked again so soon."""
    (tmp_path / "pyrite.toml").write_text(rules("#") + "pull = ['#']\n")
    users(tmp_path, "ann")
    listen = ("--listen=mqtt://127.0.0.1:0", "--listen=flight://127.0.0.1:0")
    with (
        BrokerProcess("--config", "pyrite.toml", "--data", "data", *listen, cwd=tmp_path) as broker,
        FlightLog(broker.urls[1], username="ann", password="ann-word") as log,
    ):
        assert log.table(Query()).num_rows == 0
        users(tmp_path, "bob")
        hang_up_and_wait(broker, "users, rules and certificates were read again")
        with pytest.raises(PermissionError, match="is wrong"):
            log.streams()

"""An authenticator plug-in in the broker's working folder decides about connections and topics."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.conformance.wire import CONNACK, Will, connect_packet
from tests.support.waiting import wait_until

from .conftest import Serve
from .peers import SCHEMES, Server, run_serve

PLUGIN = '''\
"""Lets in whoever knows the password, and keeps everyone but ann off topics that begin with private/."""

import sys

from pyrite.broker.access import Accept, Access, Credentials, Refuse

REFUSED = {"wrong": 0x86, "unwelcome": 0x87, "banned": 0x8A, "busy": 0x89}


class Doorman(Access):
    checks_topics = True

    def authenticate(self, credentials: Credentials) -> Accept | Refuse:
        if credentials.username == "broken":
            raise RuntimeError("the plug-in has a defect")
        if credentials.password == b"secret":
            return Accept(username=credentials.username)
        return Refuse(REFUSED.get(credentials.username or "", 0x87), "not with that password")

    def may_publish(self, credentials: Credentials, topic: str) -> bool:
        return credentials.username == "ann" or not topic.startswith("private/")

    def may_subscribe(self, credentials: Credentials, topic_filter: str) -> bool:
        return credentials.username == "ann" or not topic_filter.startswith(("private/", "#"))


def make() -> Access:
    return Doorman()
'''


@pytest.fixture
def guarded(serve: Serve, tmp_path: Path) -> Server:
    (tmp_path / "doorman.py").write_text(PLUGIN)
    return serve("[mqtt]\nauthenticator = 'doorman:make'\n", *SCHEMES, cwd=tmp_path)


def test_a_module_in_the_folder_of_the_broker_is_found_without_pythonpath(tmp_path: Path) -> None:
    (tmp_path / "doorman.py").write_text("def make():\n    return 'found, though no access object'\n")
    (tmp_path / "pyrite.toml").write_text(
        "listen = ['mqtt://127.0.0.1:0']\n[mqtt]\nauthenticator = 'doorman:make'\n"
    )
    assert "No module named" not in run_serve("--ephemeral", "--config", "pyrite.toml", cwd=tmp_path).stderr


def test_clients_with_the_password_are_accepted(guarded: Server) -> None:
    for scheme in SCHEMES:
        for version in (4, 5):
            guarded.connect(scheme, version=version, username="bob", password=b"secret").ping()


@pytest.mark.parametrize("version", [4, 5])
def test_clients_without_the_password_are_refused_with_the_code_of_their_version(
    guarded: Server, version: int
) -> None:
    for username, reason, code in (
        ("wrong", 0x86, 4),
        ("unwelcome", 0x87, 5),
        ("banned", 0x8A, 5),
        ("busy", 0x89, 3),
        (None, 0x87, 5),
    ):
        client = guarded.open(version=version)
        client.send(connect_packet("c", version=version, username=username))
        if version == 5:
            assert client.expect_refused(reason).properties["reason_string"] == "not with that password"
        else:
            client.expect_refused(code)


def test_a_client_that_fails_too_often_is_refused_unchecked(guarded: Server) -> None:
    for _ in range(5):
        client = guarded.open()
        client.send(connect_packet("c", username="wrong", password=b"guess"))
        client.expect_refused(0x86)
    client = guarded.open()
    client.send(connect_packet("c", username="ann", password=b"secret"))
    assert "too many failed log-ins" in client.expect_refused(0x9F).properties["reason_string"]


def test_publishing_to_a_topic_may_be_forbidden(guarded: Server) -> None:
    ann = guarded.connect(username="ann", password=b"secret")
    bob = guarded.connect(username="bob", password=b"secret")
    old = guarded.connect(version=4, username="bob", password=b"secret")
    ann.subscribe("private/#")
    for qos in (1, 2):
        answer = bob.publish("private/x", b"from bob", qos=qos)
        assert answer is not None
        assert answer.reason == 0x87
        old.publish("private/x", b"from old", qos=qos)
    bob.publish("private/x", b"from bob")
    bob.ping()
    assert ann.received_before_fence(ann) == []


def test_publishing_to_a_topic_may_be_allowed(guarded: Server) -> None:
    ann = guarded.connect(username="ann", password=b"secret")
    ann.subscribe("private/#")
    ann.publish("private/x", b"from ann", qos=1)
    assert ann.receive().payload == b"from ann"


def test_subscribing_to_a_filter_may_be_forbidden(guarded: Server) -> None:
    bob = guarded.connect(username="bob", password=b"secret")
    old = guarded.connect(version=4, username="bob", password=b"secret")
    assert bob.subscribe("private/#", "open/#").reasons == (0x87, 0)
    assert old.subscribe("private/#", "open/#").reasons == (0x80, 0)


def test_a_will_on_a_forbidden_topic_is_refused(guarded: Server) -> None:
    client = guarded.open()
    client.send(connect_packet("c", username="bob", password=b"secret", will=Will("private/will")))
    client.expect_refused(0x87)


def test_an_exception_in_the_plug_in_refuses_its_client_only(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "doorman.py").write_text(PLUGIN)
    server = serve("[mqtt]\nauthenticator = 'doorman:make'\n", cwd=tmp_path)
    witness = server.connect(username="ann", password=b"secret")
    client = server.open()
    client.send(connect_packet("c", username="broken"))
    client.expect_refused(0x80)
    witness.ping()
    assert any("the plug-in has a defect" in line for line in _log_of(server))


SLEEPER = """

import threading


class Sleeper(Doorman):
    def takes_time(self, credentials):
        return True

    def authenticate(self, credentials):
        print("asked", file=sys.stderr, flush=True)
        threading.Event().wait()
"""


def test_a_plug_in_that_hangs_does_not_block_shutdown(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "doorman.py").write_text(PLUGIN + SLEEPER)
    server = serve("[mqtt]\nauthenticator = 'doorman:Sleeper'\n", cwd=tmp_path)
    server.open().send(connect_packet("c", username="ann", password=b"secret"))
    wait_until(lambda: "asked" in server.process.log, "the plug-in is asked")
    assert server.process.stop() == 0


def test_a_client_not_checked_in_time_is_told_to_retry(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "doorman.py").write_text(PLUGIN + SLEEPER)
    settings = "[limits]\nconnect_timeout = 0.3\n[mqtt]\nauthenticator = 'doorman:Sleeper'\n"
    server = serve(settings, cwd=tmp_path)
    client = server.open()
    client.send(connect_packet("c", username="ann", password=b"secret"))
    client.expect_refused(0x89)
    refused = [line for line in _log_of(server) if "refused" in line]
    assert len(refused) == 1
    assert "client=c user=ann" in refused[0]
    assert "the log-in could not be checked in time" in refused[0]


def test_a_client_that_a_plug_in_cannot_check_after_a_reload_is_disconnected(
    serve: Serve, tmp_path: Path
) -> None:
    (tmp_path / "doorman.py").write_text(
        PLUGIN
        + """

class Forgetful(Doorman):
    def is_welcome(self, credentials):
        return {"ann": True}[credentials.username]
"""
    )
    server = serve("[mqtt]\nauthenticator = 'doorman:Forgetful'\n", cwd=tmp_path)
    clients = {name: server.connect(username=name, password=b"secret") for name in ("bob", "ann")}
    clients["eve"] = server.open()
    clients["eve"].send(connect_packet("eve", username="eve", password=b"secret", will=Will("open/will")))
    clients["eve"].expect(CONNACK)
    clients["ann"].subscribe("open/will")
    server.process.process.send_signal(signal.SIGHUP)
    for name in ("bob", "eve"):
        clients[name].expect_disconnect(0x87)
    clients["ann"].ping()
    log = _log_of(server)
    assert sum("KeyError: 'bob'" in line for line in log) == 1
    assert any("KeyError: 'eve'" in line for line in log)
    assert any("were reloaded" in line for line in log)


def _log_of(server: Server) -> list[str]:
    assert server.process.stop() == 0
    return server.process.log

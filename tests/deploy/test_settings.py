"""deploy/: the systemd unit and the settings keep their promises."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import httpx
import pytest
import trustme

from pyrite.access.users import User, hash_password, write_users
from pyrite.client import BlockingClient, ConnectError, PublishError, SubscribeError
from pyrite.server.config import load
from tests.support.process import BrokerProcess

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
ANALYZE = shutil.which("systemd-analyze")
MOST_EXPOSED = 2.5
"""systemd's exposure level, up to 10; a unit without any hardening has 9.6."""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[BrokerProcess]:
    """A broker with the deployed settings, with paths and ports changed."""
    folder = tmp_path_factory.mktemp("deploy")
    text = (DEPLOY / "pyrite.toml").read_text()
    moved = text.replace("/etc/pyrite", str(folder)).replace("/var/lib/pyrite", str(folder))
    (folder / "pyrite.toml").write_text(moved)
    (folder / "tls").mkdir()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(str(folder / "tls" / "server.key"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "tls" / "server.pem"))
    write_users(
        folder / "users.pyrite",
        [
            User("ann", hash_password("one"), frozenset({"admins"})),
            User("eye", hash_password("two"), frozenset({"monitors"})),
            User("pump", hash_password("three"), frozenset({"devices"})),
        ],
    )
    listen = [re.sub(r"//[\d.]+:\d+", "//127.0.0.1:0", url) for url in load(folder / "pyrite.toml").listen]
    arguments = [f"--listen={url}" for url in listen]
    with BrokerProcess("--config", str(folder / "pyrite.toml"), *arguments) as broker:
        yield broker


def connect(broker: BrokerProcess, authority: trustme.CA, name: str | None, password: str) -> BlockingClient:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    word = password if name is not None else None
    return BlockingClient(broker.urls[0], username=name, password=word, tls=context)


def listeners() -> dict[str, SplitResult]:
    """Return the listeners of the settings, by scheme."""
    urls: list[str] = tomllib.loads((DEPLOY / "pyrite.toml").read_text())["listen"]
    return {one.scheme: one for one in map(urlsplit, urls)}


def test_listeners_for_other_machines_are_encrypted() -> None:
    reached = {scheme for scheme, one in listeners().items() if one.hostname != "127.0.0.1"}
    assert reached == {"mqtts", "wss"}
    assert set(listeners()) == {*reached, "http", "ws"}


def url_of(broker: BrokerProcess, scheme: str) -> str:
    (url,) = (one for one in broker.urls if one.startswith(f"{scheme}://"))
    return url


def test_metrics_and_dashboard_are_reachable_from_this_machine(broker: BrokerProcess) -> None:
    with httpx.Client(base_url=url_of(broker, "http"), timeout=10) as api:
        assert api.get("/ready").json() == {"ready": True, "reason": None}
        assert "pyrite_uptime_seconds" in api.get("/metrics").text
        assert "<title>Pyrite</title>" in api.get("/").text
        assert api.get("/api/v1/broker").json()["websocket"] == url_of(broker, "ws")
        assert api.get("/api/v1/clients").status_code == 401


def test_the_image_is_healthy_while_the_broker_is_ready(broker: BrokerProcess) -> None:
    line = (DEPLOY / "Dockerfile").read_text().partition("HEALTHCHECK")[2].partition("CMD ")[2]
    command = json.loads(line.partition("\n")[0])
    port = str(listeners()["http"].port)
    assert command[0] == "python"
    assert port in command[-1]

    def healthy(other: int) -> bool:
        words = [sys.executable, *command[1:-1], command[-1].replace(port, str(other))]
        return subprocess.run(words, stderr=subprocess.DEVNULL, timeout=60).returncode == 0

    assert healthy(urlsplit(url_of(broker, "http")).port or 0)
    assert not healthy(urlsplit(url_of(broker, "ws")).port or 0), "a port that is open is not enough"
    with socket.socket() as none:
        none.bind(("127.0.0.1", 0))
        assert not healthy(none.getsockname()[1])


@pytest.mark.parametrize(("name", "password"), [(None, ""), ("ann", "wrong"), ("nobody", "one")])
def test_nobody_connects_without_a_password(
    broker: BrokerProcess, authority: trustme.CA, name: str | None, password: str
) -> None:
    with pytest.raises(ConnectError), connect(broker, authority, name, password):
        pass


def test_each_user_has_the_rights_of_its_groups(broker: BrokerProcess, authority: trustme.CA) -> None:
    with connect(broker, authority, "pump", "three") as device:
        device.publish("devices/pump/pressure", b"1", qos=1)
        with pytest.raises(PublishError):
            device.publish("devices/other/pressure", b"1", qos=1)
        with pytest.raises(SubscribeError):
            device.subscribe("$SYS/#")
    with connect(broker, authority, "eye", "two") as monitor:
        monitor.subscribe("$SYS/#").close()
        with pytest.raises(SubscribeError):
            monitor.subscribe("devices/#")
    with connect(broker, authority, "ann", "one") as admin:
        for topic_filter in ("#", "$SYS/#", "$pipelines/#"):
            admin.subscribe(topic_filter).close()
        admin.publish("anything", b"x", qos=1)


def test_the_log_output_is_json(broker: BrokerProcess) -> None:
    assert all(line.startswith('{"time": ') for line in list(broker.log))


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / "pyrite.service").read_text())
    return parser


def test_unit_and_settings_agree() -> None:
    service = unit()["Service"]
    config = DEPLOY / "pyrite.toml"
    text = config.read_text()
    assert service["ExecStart"].endswith("serve --config /etc/pyrite/pyrite.toml")
    assert f'data = "/var/lib/{service["StateDirectory"]}/data"' in text
    assert int(service["LimitNOFILE"]) >= 100_000 + 200
    assert "ProcSubset" not in service, "the broker reads /proc/sys"
    user = (DEPLOY / "pyrite.sysusers.conf").read_text().splitlines()[-1].split()[1]
    assert service["User"] == user


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_notified_when_the_broker_is_ready_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    service = unit()["Service"]
    assert service["Type"] == "notify"
    assert service["TimeoutStartSec"] == "infinity", "a large log takes its time to be checked"
    name = f"@{tmp_path}/notify" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        with BrokerProcess("--ephemeral", "--listen=mqtt://127.0.0.1:0") as broker:
            assert manager.recv(100) == b"READY=1"
            broker.process.terminate()
            assert manager.recv(100) == b"STOPPING=1"
            assert broker.process.wait(20) == 0
        assert broker.log == []


def test_a_broken_notify_socket_does_not_stop_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    with BrokerProcess("--ephemeral", "--listen=mqtt://127.0.0.1:0") as broker:
        assert broker.stop() == 0
    assert "cannot notify the service manager of READY=1" in broker.log[0]


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit_and_rates_it_as_hardened(tmp_path: Path) -> None:
    assert ANALYZE is not None
    path = tmp_path / "pyrite.service"
    text = (DEPLOY / "pyrite.service").read_text()
    path.write_text(text.replace("/opt/pyrite/bin/pyrite", sys.executable))  # checks that it exists
    done = subprocess.run([ANALYZE, "verify", str(path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    command = [ANALYZE, "security", "--offline=true", "--no-pager", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    exposure = re.search(r"Overall exposure level for pyrite.service: ([\d.]+)", done.stdout)
    assert exposure is not None, done.stdout + done.stderr
    assert float(exposure[1]) <= MOST_EXPOSED

"""Quotas on a real broker: over every protocol, in the API, and after a reload."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyrite.access.users import User, write_users
from pyrite.client import BlockingClient, ConnectError, FlightLog, PublishError
from pyrite.client.line import LineClient, LineError
from pyrite.storage.query import QueryError
from tests.access.test_reload import hang_up_and_wait
from tests.access.test_sinks import rows, stage
from tests.support.passwords import quick_hash
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until

SCHEMES = ("mqtt", "line", "udp", "http", "flight")
LISTEN = [f"--listen={scheme}://127.0.0.1:0" for scheme in SCHEMES]
MQTT, LINE, UDP, HTTP, FLIGHT = range(5)
CONFIG = """
[access]
users = "users"

[[access.rule]]
users = ["*"]
publish = ["#"]
subscribe = ["#"]
pull = ["#"]

[[access.rule]]
users = ["root"]
admin = ["#"]
"""
AGAIN = "quotas were reloaded"


@contextmanager
def running(folder: Path, quotas: str) -> Iterator[BrokerProcess]:
    members = {"ann": {"devices"}, "bob": set[str](), "root": set[str]()}
    write_users(
        folder / "users", [User(name, quick_hash("x"), frozenset(of)) for name, of in members.items()]
    )
    (folder / "pyrite.toml").write_text(CONFIG + quotas)
    with BrokerProcess("--config", "pyrite.toml", *LISTEN, "--data", "data", cwd=folder) as broker:
        yield broker
        assert not [line for line in broker.log if "internal error" in line or "Traceback" in line]


def mqtt(broker: BrokerProcess, user: str, **options: Any) -> BlockingClient:
    return BlockingClient(broker.urls[MQTT], username=user, password="x", **options)


def line(broker: BrokerProcess, user: str, client_id: str, place: int = LINE) -> LineClient:
    client = LineClient("127.0.0.1", broker.port(place), udp=place == UDP)
    try:
        client.connect(client_id, resume=True, ttl=60, user=user, password="x")
    except LineError:
        client.close()
        raise
    return client


def api(broker: BrokerProcess, user: str) -> httpx.Client:
    return httpx.Client(base_url=broker.urls[HTTP], auth=(user, "x"), timeout=30)


def publish(client: httpx.Client, **message: Any) -> httpx.Response:
    return client.post("/api/v1/publish", json={"topic": "t", "payload": "x", **message})


def used(client: httpx.Client) -> dict[str | None, dict[str, dict[str, float | None]]]:
    answer = client.get("/api/v1/quotas").raise_for_status().json()
    return {one["user"]: one["quotas"] for one in answer["accounts"]}


def test_each_protocol_names_the_quota_that_refuses(tmp_path: Path) -> None:
    quotas = """
[quotas.group.devices]
sessions = 2
consumers = 1
retained_bytes = 100
stored_bytes = 10000
concurrent_reads = 0
"""
    with running(tmp_path, quotas) as broker, api(broker, "ann") as ann, api(broker, "root") as root:
        with mqtt(broker, "ann", client_id="one"), line(broker, "ann", "two") as two:
            with pytest.raises(ConnectError, match="sessions of user 'ann': 2 in use, at most 2"):
                mqtt(broker, "ann", client_id="three").connect()
            for place in (LINE, UDP):
                with pytest.raises(LineError, match="quota exceeded: sessions of user 'ann'"):
                    line(broker, "ann", f"other-{place}", place)
            with line(broker, "bob", "bob"):
                two.register("first", "#")
                with pytest.raises(LineError, match="quota exceeded: consumers of user 'ann'"):
                    two.register("second", "#")
                with pytest.raises(LineError, match="quota exceeded: retained bytes of user 'ann'"):
                    two.publish("kept", bytes(200), retain=True)
                with pytest.raises(LineError, match="quota exceeded: stored bytes of user 'ann'"):
                    two.publish("t", bytes(20_000))
                assert used(root)["bob"]["connections"]["used"] == 1
            for message, quota in (
                ({"payload": "x" * 200, "retain": True}, "retained bytes"),
                ({"payload": "x" * 20_000}, "stored bytes"),
            ):
                answer = publish(ann, **message)
                assert answer.status_code == 403
                assert f"quota exceeded: {quota} of user 'ann'" in answer.json()["detail"]
            answer = ann.post("/api/v1/consumers/first/pull", json={"wait": 0})
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            assert "concurrent reads" in answer.json()["detail"]
            assert used(ann).keys() == {"ann"}, "each sees its own"
            assert {"ann", "bob"} <= used(root).keys(), "an administrator sees all"
            assert used(root)["ann"]["sessions"] == {"used": 2, "limit": 2}
            assert used(root)["bob"]["sessions"]["limit"] == 500_000, "half of what there is for all"
        with FlightLog(broker.urls[FLIGHT], username="ann", password="x") as log:
            parts = stage(log, "sink", rows("t", 2, 9_000))
            with pytest.raises(QueryError, match="quota exceeded: stored bytes of user 'ann'"):
                log.commit("sink", 0, parts)
        assert "pyrite_quota_refused_total" in root.get("/metrics").text


def test_the_rate_is_limited_over_every_protocol(tmp_path: Path) -> None:
    quotas = "[quotas.user.ann]\nmessage_rate = 20\n[quotas.user.bob]\nmessage_rate = 0.01\n"
    with running(tmp_path, quotas) as broker:
        began = time.monotonic()
        with mqtt(broker, "ann") as ann, line(broker, "ann", "line") as other:
            for number in range(30):
                ann.publish("t", b"%d" % number, qos=1)
            other.publish_many("t", [b"x"] * 30)
            assert time.monotonic() - began > 1.5, "60 messages at 20 a second, after a burst of 20"
        with api(broker, "bob") as bob:
            assert publish(bob).status_code == 200
            answer = publish(bob)
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) > 1
            assert "message rate" in answer.json()["detail"]
        with api(broker, "root") as root:
            text = root.get("/metrics").text
            assert "pyrite_publishers_throttled_total 0" not in text


def test_the_rate_is_limited_over_udp(tmp_path: Path) -> None:
    quotas = "[quotas.user.ann]\nmessage_rate = 10\n"
    with running(tmp_path, quotas) as broker, line(broker, "ann", "datagrams", UDP) as ann:
        began = time.monotonic()
        for _ in range(25):
            ann.publish("t", b"x")
        assert time.monotonic() - began > 1.0, "25 messages at 10 a second, after a burst of 10"


def test_reloaded_quotas_apply_to_connected_clients(tmp_path: Path) -> None:
    with running(tmp_path, "") as broker, mqtt(broker, "ann", client_id="one") as ann:
        ann.publish("t", bytes(20_000), qos=1)
        (tmp_path / "pyrite.toml").write_text(
            CONFIG + "[quotas.user.ann]\nsessions = 1\nstored_bytes = 1000\n"
        )
        hang_up_and_wait(broker, AGAIN)
        with pytest.raises(PublishError, match="stored bytes"):
            ann.publish("t", bytes(2_000), qos=1)
        with pytest.raises(ConnectError, match="sessions of user 'ann'"):
            mqtt(broker, "ann", client_id="two").connect()
        (tmp_path / "pyrite.toml").write_text(CONFIG + "[quotas.user.ann]\nsessions = -1\n")
        broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any("quotas.user.ann.sessions = -1" in line for line in broker.log))
        (tmp_path / "pyrite.toml").write_text(CONFIG)
        hang_up_and_wait(broker, AGAIN)
        ann.publish("t", bytes(2_000), qos=1)

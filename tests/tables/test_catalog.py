"""The REST catalog and `pyrite tables`, with a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchNamespaceError, NoSuchTableError, UnauthorizedError

from pyrite.access.users import User, write_users
from pyrite.client import BlockingClient
from tests.support.passwords import quick_hash
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until

CONFIG = """
[access]
users = "{folder}/users"

[[access.rule]]
users = ["ann"]
publish = ["#"]
pull = ["#"]

[[access.rule]]
users = ["bob"]
pull = ["plant/#", "other/1"]

[[stream]]
name = "plant"
topics = ["plant/#"]
table = true
table_delay = 1

[[stream]]
name = "other"
topics = ["other/#"]
table = true
table_delay = 1

[[stream]]
name = "default"
"""
PATH = "/iceberg/v1/namespaces/pyrite"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("tables")
    write_users(folder / "users", [User(name, quick_hash(name), frozenset()) for name in ("ann", "bob")])
    (folder / "pyrite.toml").write_text(CONFIG.format(folder=folder))
    listen = ("--listen=mqtt://127.0.0.1:0", "--listen=http://127.0.0.1:0")
    arguments = ("--config", str(folder / "pyrite.toml"), "--data", str(folder / "data"), *listen)
    with BrokerProcess(*arguments) as broker:
        with BlockingClient(broker.urls[0], username="ann", password="ann") as client:
            for number in range(10):
                client.publish("plant/1", b"%d" % number, qos=1)
            client.publish("other/1", b"x", qos=1)
        wait_until(lambda: _is_complete(broker), "the tables have all messages")
        yield broker
        assert not [line for line in broker.log if "ERROR" in line or "Traceback" in line]


def _is_complete(broker: BrokerProcess) -> bool:
    def rows(name: str) -> int:
        answer = httpx.get(f"{broker.urls[1]}{PATH}/tables/{name}", auth=("ann", "ann"), timeout=30)
        if answer.status_code == 503:
            return 0  # it is being made
        snapshots = answer.json()["metadata"].get("snapshots")
        return int(snapshots[-1]["summary"]["total-records"]) if snapshots else 0

    return (rows("plant"), rows("other")) == (10, 1)


def catalog_of(broker: BrokerProcess, user: str, password: str = "") -> RestCatalog:
    basic: Any = {"type": "basic", "basic": {"username": user, "password": password or user}}
    return RestCatalog("pyrite", uri=f"{broker.urls[1]}/iceberg", auth=basic)


def test_an_iceberg_client_attaches_with_one_address(broker: BrokerProcess) -> None:
    catalog = catalog_of(broker, "ann")
    assert catalog.list_namespaces() == [("pyrite",)]
    assert catalog.list_namespaces("pyrite") == []
    assert catalog.load_namespace_properties("pyrite") == {}
    assert catalog.namespace_exists("pyrite")
    assert catalog.list_tables("pyrite") == [("pyrite", "plant"), ("pyrite", "other")]
    assert catalog.table_exists("pyrite.plant")
    assert not catalog.table_exists("pyrite.default"), "this stream is not a table"
    found = catalog.load_table("pyrite.plant").scan().to_arrow()["payload"].to_pylist()
    assert found == [b"%d" % number for number in range(10)]


def test_unknown_names_are_told_from_each_other(broker: BrokerProcess) -> None:
    catalog = catalog_of(broker, "ann")
    with pytest.raises(NoSuchTableError, match="there is no table 'x'"):
        catalog.load_table("pyrite.x")
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables("x")


def test_a_table_is_for_those_who_may_pull_the_whole_stream(broker: BrokerProcess) -> None:
    catalog = catalog_of(broker, "bob")
    assert catalog.list_tables("pyrite") == [("pyrite", "plant")]
    assert catalog.load_table("pyrite.plant").name() == ("pyrite", "plant")
    with pytest.raises(ForbiddenError, match="not authorized: pull 'other/#'"):
        catalog.load_table("pyrite.other")


def test_a_log_in_is_required(broker: BrokerProcess) -> None:
    with pytest.raises(UnauthorizedError):
        catalog_of(broker, "ann", "wrong")
    for path in ("/iceberg/v1/config", PATH, f"{PATH}/tables", f"{PATH}/tables/plant"):
        answer = httpx.get(broker.urls[1] + path)
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "NotAuthorizedException"


def test_the_catalog_cannot_be_written_to(broker: BrokerProcess) -> None:
    table = catalog_of(broker, "ann").load_table("pyrite.plant")
    with pytest.raises(NotImplementedError):
        table.append(table.scan().to_arrow())
    for method in ("POST", "DELETE"):
        answer = httpx.request(method, f"{broker.urls[1]}{PATH}/tables/plant", auth=("ann", "ann"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, 405)


def test_the_command_lists_rows_files_snapshots_and_delay(broker: BrokerProcess) -> None:
    data = _data_of(broker)
    done = subprocess.run(
        [sys.executable, "-m", "pyrite", "tables", "--data", data], capture_output=True, text=True, check=True
    )
    listed = [line.split("\t") for line in done.stdout.splitlines()]
    assert [(one[0], one[1], one[2], one[5]) for one in listed] == [
        ("other", "1", "1", "0.0"),
        ("plant", "10", listed[1][2], "0.0"),
    ]
    metadata = json.loads(Path(listed[1][6].removeprefix("file://")).read_text())
    assert len(metadata["snapshots"]) == int(listed[1][4])


def _data_of(broker: BrokerProcess) -> str:
    location: str = catalog_of(broker, "ann").load_table("pyrite.plant").location()
    return location.removeprefix("file://").removesuffix("/tables/plant")

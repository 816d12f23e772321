"""The status that a pipeline publishes, and errors when the broker refuses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pyrite.access.users import User, write_users
from pyrite.client.blocking import BlockingClient
from pyrite.pipeline.project import make_project
from pyrite.pipeline.run import Runner
from tests.support.passwords import quick_hash
from tests.support.process import BrokerProcess

CONFIG = """
[access]
users = "users"

[[access.rule]]
users = ["ann", "bob"]
publish = ["$pipelines/#"]
subscribe = ["$pipelines/#"]
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("state")
    write_users(folder / "users", [User(name, quick_hash("x")) for name in ("ann", "bob", "carl")])
    (folder / "pyrite.toml").write_text(CONFIG)
    listen = ["--listen=flight://127.0.0.1:0", "--listen=mqtt://127.0.0.1:0"]
    with BrokerProcess("--config", "pyrite.toml", *listen, "--data", "data", cwd=folder) as broker:
        yield broker


def run_as(name: str, folder: Path, broker: str, monkeypatch: pytest.MonkeyPatch, *states: str) -> list[str]:
    """Publish states as a user; return the notes to the user."""
    monkeypatch.setenv("PYRITE_USERNAME", name)
    monkeypatch.setenv("PYRITE_PASSWORD", "x")
    said: list[str] = []
    runner = Runner(make_project(folder), cast(Any, None), broker, said.append)
    for state in states:
        runner.tell(state)
    return said


def seen(broker: BrokerProcess, name: str) -> dict[str, Any]:
    """Return the last status of a pipeline."""
    with (
        BlockingClient(broker.urls[1], username="ann", password="x") as client,
        client.subscribe(f"$pipelines/{name}") as messages,
    ):
        found: dict[str, Any] = json.loads(messages.get(timeout=30).payload)
        return found


def test_a_pipeline_name_of_another_user_is_reported_once(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = broker.urls[0]
    assert run_as("ann", tmp_path / "ann" / "plant", url, monkeypatch, "running", "waiting") == []
    said = run_as("bob", tmp_path / "bob" / "plant", url, monkeypatch, "running", "waiting", "stopped")
    assert len(said) == 1
    assert "$pipelines/plant" in said[0]
    assert "sink 'pipeline-plant' belongs to another user" in said[0]
    assert "a folder with another name" in said[0]
    assert "\n" not in said[0]
    assert seen(broker, "plant")["state"] == "waiting"


def test_a_missing_right_to_publish_the_status_is_reported(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = run_as("carl", tmp_path / "mine", broker.urls[0], monkeypatch, "running", "waiting")
    assert len(said) == 1
    assert "the right to publish on $pipelines/#" in said[0]


def test_an_unreachable_broker_is_ignored_when_publishing_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_as("ann", tmp_path / "plant", "flight://127.0.0.1:1", monkeypatch, "stopped") == []

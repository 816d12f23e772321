"""Schemas inferred from messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyrite.client import BlockingClient
from pyrite.pipeline.infer import Family, infer
from pyrite.pipeline.schemas import TopicSchema, read_schemas
from tests.support.process import BrokerProcess


def pyrite(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyrite", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def found(*messages: tuple[str, Any]) -> dict[str, Family]:
    encoded = (
        (topic, each if isinstance(each, bytes) else json.dumps(each).encode()) for topic, each in messages
    )
    return {family.topic: family for family in infer(encoded)}


def fields(*payloads: Any) -> dict[str, str]:
    (family,) = found(*(("a", payload) for payload in payloads)).values()
    return family.fields


def test_topics_that_differ_in_levels_form_a_family() -> None:
    states = [(f"plant/{line}/{at}/state", {"speed": 1.5}) for line in "abc" for at in range(30)]
    counts = [(f"plant/{line}/{at}/count", {"good": 1, "bad": 2}) for line in "abc" for at in range(30)]
    rooms = [(f"home/{room}", 20 + at) for at, room in enumerate(("attic", "hall"))]
    families = found(*states, *counts, *rooms, ("$SYS/x", 1), ("alerts/x", {}))
    assert set(families) == {"plant/+/+/state", "plant/+/+/count", "home/+"}
    family = families["plant/+/+/state"]
    assert (family.name, family.topics, family.device) == ("plant_state", 90, [2, 3])
    assert families["home/+"].fields == {"value": "double"}


def test_a_level_with_payloads_of_several_kinds_is_divided() -> None:
    families = found(("s/1/a", {"x": 1}), ("s/2/a", {"x": 2}), ("s/1/b", {"y": 1}), ("s/2/b", {"y": "text"}))
    assert set(families) == {"s/+/a", "s/+/b"}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "bigint"),
        ([1, 2.5], "double"),
        ([2**70], "double"),
        ([True, None], "boolean"),
        (["x", "y"], "string"),
        (["1.5", "2"], "string"),
        ([1, "x"], "string"),
        ([None], "string"),
        (["2026-01-31T12:00:00Z", "2026-01-31 12:00:00.5+01:00"], "timestamp"),
        ([{"b": 1, "c": "x"}, {"b": 2.5}], "struct<`b`: double, `c`: string>"),
        ([[1, 2], []], "array<bigint>"),
        ([{}], "string"),
    ],
)
def test_fields_have_the_type_that_all_values_fit(values: list[Any], kind: str) -> None:
    assert fields(*({"a": value} for value in values)) == {"a": kind}


def test_notes_tell_what_was_unusual() -> None:
    (family,) = found(
        ("a", {"x": 1, "t": 1_760_000_000}), ("a", {"x": 2.5, "n": "5", "t": 1_760_000_001})
    ).values()
    assert family.notes["x"] == ["some are whole numbers"]
    assert family.notes["n"] == ["in 50% of messages", "numbers as text"]
    assert (family.time, family.time_unit) == (None, None)
    (timed,) = found(("a", {"ts": 1_760_000_000_123})).values()
    assert (timed.time, timed.time_unit) == ("ts", "ms")


def test_csv_and_broken_payloads() -> None:
    lines = [b"1,2.5,x", b"2,3,y", b"\xff", b"{"]
    (family,) = found(*(("a", line) for line in lines)).values()
    assert family.payloads.format == "csv"
    assert family.fields == {"c1": "bigint", "c2": "double", "c3": "string"}
    assert family.confidence == 0.5


def test_what_is_inferred_can_be_read_as_schemas(tmp_path: Path) -> None:
    state = {"time": "2026-01-31T12:00:00Z", "device": "x", "no-column": 1, "v": 1}
    messages: list[tuple[str, Any]] = [(f"p/{line}/{at}", state) for line in "ab" for at in "12"]
    messages += [("q/1", b"1.5"), ("q/2", b"2"), ("r", b"1,2"), ("s", b"hello")]
    messages += [("t/1/2/3/4", {"ts": 1_760_000_000})]
    families = found(*messages)
    path = tmp_path / "schemas.toml"
    path.write_text("\n".join(family.toml() for family in families.values()))
    schemas = {schema.topic: schema for schema in read_schemas(path)}
    assert set(schemas) == set(families)
    assert schemas["p/+/+"].device_from == (2, 3)
    assert schemas["p/+/+"].columns == {"device": "payload_device", "v": "v"}
    assert (schemas["t/1/2/3/4"].time, schemas["t/1/2/3/4"].time_unit) == ("ts", "s")
    assert isinstance(schemas["q/+"], TopicSchema)


def test_a_project_is_created_from_a_thousand_unknown_topics(tmp_path: Path) -> None:
    listen = ("--listen", "mqtt://127.0.0.1:0", "--listen", "flight://127.0.0.1:0")
    with BrokerProcess("--data", str(tmp_path / "data"), *listen) as broker:
        with BlockingClient(broker.urls[0]) as client:
            topics = [f"plant/{at % 10}/{at}/state" for at in range(1000)]
            client.publish_many([(topic, b'{"speed": 1.5, "on": true}') for topic in topics], 1)
        init = pyrite(tmp_path, "pipeline", "init", "plant", "--infer", "--broker", broker.urls[1])
        infer = pyrite(tmp_path, "schemas", "infer", "--broker", broker.urls[1], "--topic", "none/#")
    assert init.returncode == 0, init.stderr
    (schema,) = read_schemas(tmp_path / "plant" / "schemas.toml")
    assert (schema.topic, schema.fields) == ("plant/+/+/state", {"speed": "double", "on": "boolean"})
    assert (infer.returncode, "no message of stream 'default' matches 'none/#'" in infer.stderr) == (1, True)

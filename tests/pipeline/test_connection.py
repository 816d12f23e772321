"""Who a pipeline is, as the environment says."""

from __future__ import annotations

from typing import Any

import pytest

from pyrite.pipeline.connection import credentials, spark_options
from pyrite.spark.options import Place, read_options, write_options

BROKER = "flights://broker:8816"
GIVEN: dict[str, Any] = {"username": "u", "password": "p", "ca_file": "a", "cert_file": "c", "key_file": "k"}


def test_spark_and_flight_are_told_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GIVEN.items():
        monkeypatch.setenv(f"PYRITE_{name.upper()}", value)
    assert credentials() == GIVEN
    assert read_options(spark_options(BROKER)).place == Place(BROKER, **GIVEN)
    assert write_options({**spark_options(BROKER), "topic": "a"}).place == Place(BROKER, **GIVEN)


def test_without_any_the_broker_alone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*GIVEN, "token"):
        monkeypatch.delenv(f"PYRITE_{name.upper()}", raising=False)
    assert credentials() == {}
    assert spark_options(BROKER) == {"broker": BROKER}

"""Credentials of a pipeline, from the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyrite.pipeline.connection import credentials, spark_options
from pyrite.spark.options import LogLocation, read_options, write_options

BROKER = "flights://broker:8816"
FILES = ("ca_file", "cert_file", "key_file")
NAMES = ("username", "password", "token", *FILES)


def test_spark_and_flight_get_the_same_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: dict[str, Any] = {"username": "u", "password": "p"}
    for name in FILES:
        (tmp_path / name).touch()
        given[name] = str(tmp_path / name)
    for name, value in given.items():
        monkeypatch.setenv(f"PYRITE_{name.upper()}", value)
    assert credentials() == given
    assert read_options(spark_options(BROKER)).location == LogLocation(BROKER, **given)
    assert write_options({**spark_options(BROKER), "topic": "a"}).location == LogLocation(BROKER, **given)


def test_without_credentials_only_the_broker_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(f"PYRITE_{name.upper()}", raising=False)
    assert credentials() == {}
    assert spark_options(BROKER) == {"broker": BROKER}

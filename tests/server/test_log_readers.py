"""Named readers of the log: bounded in number, and forgotten when they are silent."""

from __future__ import annotations

import pytest

from pyrite.broker.journal import Stream
from pyrite.server import log_readers
from pyrite.server.log_readers import LogReaders
from tests.support.core import Core

STREAM = Stream(0, "default", [b"#"], 10)


def lags(readers: LogReaders) -> dict[str, int]:
    return {one.name: one.lag for one in readers.all()}


def test_the_lag_of_a_reader_is_what_it_has_not_read() -> None:
    readers = LogReaders(Core().broker)
    assert readers.note("q", "ann", STREAM, 4) == ""
    assert lags(readers) == {"q": 6}
    assert readers.note("q", "ann", STREAM, 20) == ""
    assert lags(readers) == {"q": 0}


def test_users_and_the_broker_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_readers, "MAX_READERS", 3)
    monkeypatch.setattr(log_readers, "MAX_READERS_PER_USER", 2)
    readers = LogReaders(Core().broker)
    assert [readers.note(name, "ann", STREAM, 0) for name in "ab"] == ["", ""]
    assert readers.note("c", "ann", STREAM, 0) == "user 'ann' has 2 named readers already"
    assert readers.note("c", "bob", STREAM, 0) == ""
    assert readers.note("d", "eve", STREAM, 0) == "there are 3 named readers already"
    assert readers.note("a", "ann", STREAM, 5) == "", "a known reader may go on"


def test_a_silent_reader_is_forgotten() -> None:
    core = Core()
    readers = LogReaders(core.broker)
    readers.note("q", "ann", STREAM, 4)
    core.broker.tick(core.broker.now + log_readers.FORGET_AFTER + 1)
    assert lags(readers) == {}

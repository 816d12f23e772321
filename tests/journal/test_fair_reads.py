"""Reads of the log take turns over users and their clients, and a stop waits for none of them."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pyarrow as pa
import pytest

from pyrite.broker.journal import Piece, Wanted
from pyrite.broker.message import Batch
from pyrite.journal import reading
from pyrite.journal.disk import open_journal
from pyrite.journal.workers import FairThreadWorker
from pyrite.process.fair import Asker, FairQueue
from pyrite.storage import frames, schema
from pyrite.storage.files import Files
from pyrite.storage.options import StreamOptions
from pyrite.storage.segment_writer import SegmentWriter
from pyrite.storage.stream import StreamReader
from pyrite.storage.tail import Row
from tests.support.core import Core
from tests.support.waiting import wait_until

BOUND = 30.0
"""Seconds after which a test gives up."""


def queued(*askers: tuple[str, str]) -> FairQueue[tuple[str, str]]:
    queue: FairQueue[tuple[str, str]] = FairQueue()
    for user, client in askers:
        queue.put(Asker(user, client), (user, client))
    return queue


def test_users_take_turns_and_so_do_the_clients_of_each_user() -> None:
    queue = queued(*[("ann", "1")] * 3, ("ann", "2"), ("bob", "1"), *[("bob", "2")] * 2)
    order = [queue.get() for _ in range(len(queue))]
    assert order == [
        ("ann", "1"),
        ("bob", "1"),
        ("ann", "2"),
        ("bob", "2"),
        ("ann", "1"),
        ("bob", "2"),
        ("ann", "1"),
    ]
    assert not queue


class Reader:
    """A worker of the real kind, whose results are taken in this thread, as an event loop takes them."""

    def __init__(self) -> None:
        self.results: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self.worker = FairThreadWorker("reading", self.results.put, 5.0)

    def hold(self) -> threading.Event:
        """Have the thread wait for an event, and return that."""
        began, release = threading.Event(), threading.Event()

        def wait() -> None:
            began.set()
            release.wait(BOUND)

        self.worker.run(wait, lambda _: None, asker=Asker("gate"))
        assert began.wait(BOUND)
        return release

    def take(self) -> None:
        """Take one result."""
        self.results.get(timeout=BOUND)()


@pytest.fixture
def reader() -> Iterator[Reader]:
    one = Reader()
    yield one
    one.worker.stop()


def test_a_read_of_one_user_waits_for_one_of_another_with_300_sessions(
    tmp_path: Path, reader: Reader
) -> None:
    journal = open_journal(tmp_path / "data", [StreamOptions()], reading=reader.worker)
    core = Core(journal=journal)
    core.connect("publisher").publish("a", b"x", qos=1)
    (stream,) = journal.streams
    order: list[str] = []

    def read(asker: Asker) -> None:
        def answer(piece: Piece) -> None:
            assert [batch.payload() for batch in piece.batches] == [b"x"]
            order.append(asker.user)

        journal.read(stream, 0, 1, Wanted([b"#"]), answer, asker)

    release = reader.hold()
    for number in range(300):
        read(Asker("many", str(number)))
    read(Asker("one", "only"))
    release.set()
    while len(order) < 301:
        reader.take()
    assert order.index("one") == 1
    journal.close()


def test_stopping_discards_waiting_reads(reader: Reader) -> None:
    ran: list[int] = []
    release = reader.hold()
    for number in range(1_000):
        reader.worker.run(lambda: ran.append(1), lambda _: None, asker=Asker(str(number)))
    stopping = threading.Thread(target=reader.worker.stop)
    stopping.start()
    wait_until(lambda: not reader.worker.waiting, "the reads that wait are discarded")
    release.set()
    stopping.join(BOUND)
    assert not stopping.is_alive()
    assert not ran


def test_single_messages_far_apart_are_read_in_several_turns(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_READ_TIME", 0.0)
    monkeypatch.setattr(reading, "MIN_EXAMINED", 1)
    journal = open_journal(tmp_path / "data", [StreamOptions()], reading=reader.worker)
    core = Core(journal=journal)
    client = core.connect("publisher")
    for number in range(10):
        client.publish("a", b"%d" % number, qos=1)
    (stream,) = journal.streams
    order: list[object] = []
    release = reader.hold()
    journal.fetch(stream, [9, 0, 4, 4], lambda found: order.append(sorted(found)), Asker("far"))
    journal.read(stream, 0, 1, Wanted([b"#"]), lambda piece: order.append("other"), Asker("other"))
    release.set()
    while len(order) < 2:
        reader.take()
    assert order == ["other", [0, 4, 9]]
    journal.close()


def test_a_finished_fetch_does_not_reference_its_session(tmp_path: Path, reader: Reader) -> None:
    class Session:
        found: dict[int, Batch] | None = None

        def answer(self, found: dict[int, Batch]) -> None:
            self.found = found

    journal = open_journal(tmp_path / "data", [StreamOptions()], reading=reader.worker)
    client = Core(journal=journal).connect("publisher")
    client.publish("a", b"1", qos=1)
    (stream,) = journal.streams
    session = Session()
    reference = weakref.ref(session)
    gc.disable()
    try:
        journal.fetch(stream, [0], session.answer, Asker("user"))
        while session.found is None:
            reader.take()
        del session
        assert reference() is None, "no garbage collection is needed"
    finally:
        gc.enable()
        journal.close()


def test_a_filtered_read_expands_only_record_batches_with_its_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expanded: list[pa.RecordBatch] = []

    def expand(rows: pa.RecordBatch) -> pa.RecordBatch:
        expanded.append(rows)
        return schema.plain(rows)

    monkeypatch.setattr(frames, "plain", expand)
    monkeypatch.setattr(reading, "MAX_READ_TIME", BOUND)
    writer = SegmentWriter(Files(), tmp_path, 0)
    for number in range(9):
        topic = b"rare/1" if number == 7 else b"common"
        writer.append_rows([Row(number, topic, b"", 1, False, None)] * 2, 2 * number, sync=False)
        writer.fold()
    piece = reading.read_piece(StreamReader(tmp_path), 0, 18, Wanted([b"rare/#"]), print)
    assert [(batch.topic, first) for batch, first, _ in piece.found] == [(b"rare/1", 14), (b"rare/1", 15)]
    assert piece.next_offset == 18
    assert len(expanded) == 1
    writer.close()

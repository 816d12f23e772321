"""One commit of a sink: publishes all staged messages exactly once.

A commit first saves its plan (`PendingCommit`): the parts, and the end of each stream. Then it publishes the
messages with SINK/BATCH as their client identifier, and finally saves that the batch is committed. If the
broker ends in between, it counts at the next start how many messages with that identifier each stream has
since then, and publishes the rest. A committed batch is never published again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyrite.broker.journal import Fault
from pyrite.broker.message import Batch, MixedBatch
from pyrite.broker.policy import Refusal
from pyrite.broker.timers import TURN
from pyrite.journal.sink_state import PendingCommit, SinkState
from pyrite.sinks.batches import batches_of, qos_of
from pyrite.storage.query import QueryError
from pyrite.storage.segment import Damage
from pyrite.storage.stream import StreamReader
from pyrite.topics.filters import InvalidTopic, check_topic

if TYPE_CHECKING:
    from pyrite.broker.accounts import Account
    from pyrite.broker.routes import Route
    from pyrite.sinks.sinks import Sinks

logger = logging.getLogger(__name__)

T = TypeVar("T")
RefusePublish = Callable[[bytes, int], Refusal | None]
Answer = Callable[[bool, str], object]
"""Called with True if this call committed the batch (False if it was committed before), and an error text."""


def log_failure(wrong: str) -> None:
    """Log an error, unless the text is empty; for work that no client waits for."""
    if wrong:
        logger.error("staged rows of a sink: %s", wrong)


class SinkCommit:
    """One commit."""

    def __init__(
        self,
        sinks: Sinks,
        state: SinkState,
        batch: int,
        parts: list[str],
        refuse: RefusePublish,
        answer: Answer,
        user: str | None = None,
    ) -> None:
        self._sinks = sinks
        self._user = user
        """The user who owns the sink from this commit on; None without access rules."""
        self._journal, self._broker, self._staging = sinks.journal, sinks.broker, sinks.staging
        self.state = state
        self._batch = batch
        self.parts = parts
        """The parts of this request; an earlier attempt may have saved other parts in `state.pending`."""
        self._refuse = refuse
        self._answer = answer
        self._origin = f"{state.name}/{batch}"
        self._skip: dict[str, int] = {}
        """Messages that an earlier attempt published, by stream."""
        self._rows: Iterator[pa.RecordBatch] = iter(())
        self._ready: deque[Batch] = deque()
        self._left = 1
        """Batches that are not durable yet, plus one until all were published."""
        self._fault = ""
        self._meter: Account | None = None
        """The account of the sink's owner, if it has a rate quota."""

    def begin(self) -> None:
        """Start the commit, or finish an earlier attempt."""
        self._attempt(self._begin)

    def _begin(self) -> None:
        pending = self.state.pending
        if pending is not None and pending.batch == self._batch:
            self._run(lambda: self._count_published(pending), self._counted)
        elif self._batch <= self.state.batch:
            self._end(False, "")
        else:
            self._run(self._topics, self._check)

    def _attempt(self, step: Callable[[], object]) -> None:
        """Run one step; an exception ends this commit only."""
        try:
            step()
        except Exception as error:
            logger.exception("internal error in a commit of sink %s", self.state.name)
            self._fail(f"internal error: {error!r}")

    def _fail(self, wrong: str) -> None:
        """Fail the commit once all batches published so far are durable or have failed."""
        self._fault = wrong
        self._published(False, None)

    def _run(self, job: Callable[[], T], then: Callable[[T], object]) -> None:
        """Run a job in another thread, and `then` with its result; an error ends the commit."""

        def guarded() -> tuple[T | None, str]:
            try:
                return job(), ""
            except (OSError, pa.ArrowException, QueryError) as error:
                return None, str(error) or repr(error)
            except Exception as error:
                logger.exception("internal error in a commit of sink %s", self.state.name)
                return None, f"internal error: {error!r}"

        def done(result: tuple[T | None, str]) -> None:
            found, wrong = result
            if wrong:
                self._fail(wrong)
            else:
                self._attempt(lambda: then(found))  # type: ignore[arg-type]

        self._journal.offload(guarded, done)

    # Check

    def _topics(self) -> dict[str, int]:
        """Return the topics of the parts, each with its highest QoS."""
        missing = self._staging.missing(self.state.name, self.parts)
        if missing:
            raise QueryError(f"part {missing[0]!r} of sink {self.state.name!r} was not staged")
        found: dict[str, int] = {}
        for rows in self._staging.read(self.state.name, self.parts):
            table = pa.table({"topic": rows.column("topic"), "qos": qos_of(rows)})
            for row in table.group_by("topic").aggregate([("qos", "max")]).to_pylist():
                found[row["topic"]] = max(row["qos_max"], found.get(row["topic"], 0))
        return found

    def _check(self, topics: dict[str, int]) -> None:
        for topic, qos in topics.items():
            wrong = self._refusal(topic, qos)
            if wrong:
                self._end(False, f"topic {topic!r}: {wrong}")
                return
        state = self.state
        if self._user is not None and state.owner not in (None, self._user):
            self._end(False, f"sink {state.name!r} belongs to another user: choose another name")
            return
        if self._user is not None:
            state.owner = self._user
            state.staged.clear()
        since = {stream.name: stream.next_offset for stream in self._journal.streams}
        self.state.pending = PendingCommit(self._batch, self.parts, since)
        self._journal.state.save_sink(self.state)
        self._journal.after(lambda: self._attempt(self._publish))

    def _refusal(self, topic: str, qos: int) -> str:
        name = topic.encode()
        try:
            check_topic(name, self._broker.limits.max_topic_levels)
        except InvalidTopic as wrong:
            return str(wrong)
        refusal = self._refuse(name, qos)
        return "" if refusal is None else refusal.text

    # Finish an earlier attempt

    def _count_published(self, pending: PendingCommit) -> dict[str, int]:
        published = {}
        for stream in self._journal.streams:
            since = pending.since.get(stream.name, 0)
            reader = StreamReader(self._journal.folder.streams / stream.name)
            count = 0
            for piece in reader.read(since, columns=["offset", "client_id"]):
                if isinstance(piece, Damage):
                    raise QueryError(f"cannot count the messages published earlier: {piece}")
                count += pc.sum(pc.equal(piece.column(1), self._origin)).as_py() or 0
            published[stream.name] = count
        return published

    def _counted(self, published: dict[str, int]) -> None:
        self._skip = published
        self._publish()

    def _without_published(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that an earlier attempt did not publish: all but the first ones of each stream."""
        if not any(self._skip.values()):
            return rows
        topics = rows.column("topic").dictionary_encode()
        streams = [self._journal.stream_for(name.encode()) for name in topics.dictionary.to_pylist()]
        names = np.array([stream.name if stream is not None else "" for stream in streams], object)
        of = names[topics.indices.to_numpy()]
        keep = np.ones(rows.num_rows, np.bool_)
        for name, count in self._skip.items():
            if count:
                places = np.flatnonzero(of == name)[:count]
                keep[places] = False
                self._skip[name] -= len(places)
        return rows.filter(pa.array(keep))

    # Publish

    def _publish(self) -> None:
        assert self.state.pending is not None
        account = self._account
        self._meter = None if account is None else account.meter
        self._rows = self._staging.read(self.state.name, self.state.pending.parts)
        self._run(self._next, self._publish_batches)

    def _next(self) -> list[Batch] | None:
        """Return the next batches; None after the last."""
        rows = next(self._rows, None)
        if rows is None:
            return None
        rows = self._without_published(rows)
        return batches_of(rows, self._origin) if rows.num_rows else []

    def _publish_batches(self, batches: list[Batch] | None) -> None:
        if batches is None or self._fault:
            self._published(False, None)
            return
        self._ready.extend(batches)
        self._publish_some()

    def go_on(self) -> None:
        """Publish for one turn."""
        self._attempt(self._publish_some)

    def _publish_some(self) -> None:
        broker, ready = self._broker, self._ready
        until = broker.clock() + TURN
        while ready:
            if self._journal.full:
                broker.turns.wait_for_journal(self)
                return
            if broker.fan_outs.is_full and broker.fan_outs.has_to_wait(
                ready[0].parts()[0].topic, ready[0].count
            ):
                broker.fan_outs.wait(self)
                return
            if self._meter is not None and self._meter.is_spent:
                self._meter.wait(self)
                return
            self._publish_batch(ready.popleft())
            if ready and broker.clock() > until:
                broker.turns.add(self)
                return
        self._run(self._next, self._publish_batches)

    def _publish_batch(self, batch: Batch) -> None:
        broker, routes = self._broker, self._broker.subscriptions
        if isinstance(batch, MixedBatch):
            found = {routes.route(topic) for topic in {*batch.topics}}
            if len(found) > 1:
                self._ready.extendleft(reversed(batch.parts()))
                return
            self._left += 1
            self._publish_for_owner(batch, found.pop())
            return
        properties = batch.properties
        if properties is not None and properties.message_expiry is not None:
            batch.expires_at = broker.now + properties.message_expiry
        self._left += 1
        self._publish_for_owner(batch.owned_by(self._account) if batch.retain else batch)

    def _publish_for_owner(self, batch: Batch, route: Route | None = None) -> None:
        """Publish a batch, and charge it to the sink's owner if they have a rate quota."""
        meter = self._meter
        if meter is None:
            self._broker.publishing.publish(batch, route, self._published)
        else:
            meter.charge(batch.count, len(batch.data))
            self._broker.publishing.publish_for(meter, batch, route, self._published)

    @property
    def _account(self) -> Account | None:
        """The account of the sink's owner; None if there is no owner with a name."""
        owner = self.state.owner
        return self._broker.quotas.restored(f"user:{owner}") if owner else None

    def _published(self, matched: bool, fault: Fault | None) -> None:
        self._left -= 1
        if fault is not None:
            self._fault = fault.text
        if self._left:
            return
        if self._fault:
            self._end(False, self._fault)  # the next attempt publishes the rest
            return
        state = self.state
        state.batch, state.used, state.pending = self._batch, self._journal.wall(), None
        self._journal.state.save_sink(state)
        self._journal.after(partial(self._end, True, ""))

    def _end(self, committed: bool, wrong: str) -> None:
        """Remove parts that are no longer needed, then answer: the client may stage new ones immediately."""
        told = partial(self._ended, committed, wrong)
        if committed:  # other parts are left over from failed writers
            self._sinks.remove(self.state.name, None, told, other_than=self)
        elif self.state.pending is None:
            self._sinks.remove(self.state.name, self.parts, told, other_than=self)
        else:
            told("")

    def _ended(self, committed: bool, wrong: str, left: str) -> None:
        log_failure(left)
        try:
            self._answer(committed, wrong)
        except Exception:  # the next commit must begin
            logger.exception("internal error in the answer to a commit of sink %s", self.state.name)
        self._sinks.ended()

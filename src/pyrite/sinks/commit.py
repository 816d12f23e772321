"""One commit of a sink: what was staged is published, all of it, and exactly once.

A commit first notes what it is going to do (`pending`): the parts, and where each stream ended. Then it
publishes the messages, with the commit's own name as their client id; and at last notes that the batch is
done. If the broker dies in between, it counts when it starts again how many messages with that name have come
to lie in each stream since, and publishes the others. A batch that is done is not done again, whoever asks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyrite.broker.journal import Fault
from pyrite.broker.message import Batch, MixedBatch
from pyrite.broker.policy import Refusal
from pyrite.broker.timers import TURN
from pyrite.sinks.batches import batches_of
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
RefusePublish = Callable[[bytes], Refusal | None]
Answer = Callable[[bool, str], object]
"""Is told whether the batch is committed now, and was not before; and what is wrong, if it is not."""


@dataclass
class Pending:
    """A commit that was begun."""

    batch: int
    parts: list[str]
    since: dict[str, int]
    """By name of the stream, the offset that its next message would get."""


@dataclass
class SinkState:
    """What is known of a sink."""

    name: str
    batch: int = -1
    """The last batch that was committed."""
    used: float = 0.0
    """When that was, or when it got its owner, in seconds since 1970."""
    pending: Pending | None = field(default=None)
    owner: str | None = None
    """The user who committed first, "" for one without a name; None before that, or where none is asked."""
    staged: dict[str, str] = field(default_factory=dict)
    """Before the first commit: by part, the user who staged it. Each may use only parts of its own."""

    def dump(self) -> dict[str, Any]:
        """Return it as it is kept."""
        return {
            "batch": self.batch,
            "used": self.used,
            "pending": self.pending and asdict(self.pending),
            "owner": self.owner,
            "staged": self.staged,
        }

    @classmethod
    def load(cls, name: str, kept: dict[str, Any]) -> SinkState:
        """Return what was kept."""
        pending = kept["pending"]
        return cls(
            name,
            kept["batch"],
            kept["used"],
            Pending(**pending) if pending else None,
            kept.get("owner"),
            kept.get("staged", {}),
        )


def log_what_is_wrong(wrong: str) -> None:
    """Log what is wrong with what was staged, if something is: for those who have no one to tell."""
    if wrong:
        logger.error("what sinks have staged: %s", wrong)


class Commit:
    """One commit under way."""

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
        """The user who owns the sink from this commit on; None where names are not asked."""
        self._journal, self._broker, self._staging = sinks.journal, sinks.broker, sinks.staging
        self.state = state
        self._batch = batch
        self.parts = parts
        """Those that were given; `pending` may have others, from an attempt before this one."""
        self._refuse = refuse
        self._answer = answer
        self._origin = f"{state.name}/{batch}"
        self._skip: dict[str, int] = {}
        """By stream, how many messages lie there already."""
        self._rows: Iterator[pa.RecordBatch] = iter(())
        self._ready: deque[Batch] = deque()
        self._left = 1
        """How many batches are not known to be safe; and one more, until all are published."""
        self._fault = ""
        self._meter: Account | None = None
        """The account of the sink's owner, if what it publishes is metered."""

    def begin(self) -> None:
        """See what there is to be done."""
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
        """Take a step; a mistake in it ends this commit, and the others go on."""
        try:
            step()
        except Exception as error:
            logger.exception("internal error in a commit of sink %s", self.state.name)
            self._fail(f"internal error: {error!r}")

    def _fail(self, wrong: str) -> None:
        """End, when it is known what became of what was published by now."""
        self._fault = wrong
        self._published(False, None)

    def _run(self, job: Callable[[], T], then: Callable[[T], object]) -> None:
        """Do something that takes time in another thread; what goes wrong there ends the commit."""

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

        self._journal.aside(guarded, done)

    # Before

    def _topics(self) -> list[str]:
        """Return all topics of the parts, each once."""
        missing = self._staging.missing(self.state.name, self.parts)
        if missing:
            raise QueryError(f"part {missing[0]!r} of sink {self.state.name!r} was not staged")
        found: dict[str, None] = {}
        for rows in self._staging.read(self.state.name, self.parts):
            found.update(dict.fromkeys(pc.unique(rows.column("topic")).to_pylist()))
        return list(found)

    def _check(self, topics: list[str]) -> None:
        for topic in topics:
            wrong = self._refusal(topic)
            if wrong:
                self._end(False, f"topic {topic!r}: {wrong}")
                return
        state = self.state
        if self._user is not None and state.owner not in (None, self._user):
            self._end(False, f"sink {state.name!r} is another user's: choose another name")
            return
        if self._user is not None:
            state.owner = self._user
            state.staged.clear()
        since = {stream.name: stream.next_offset for stream in self._journal.streams}
        self.state.pending = Pending(self._batch, self.parts, since)
        self._journal.save_sink(self.state)
        self._journal.after(lambda: self._attempt(self._publish))

    def _refusal(self, topic: str) -> str:
        name = topic.encode()
        try:
            check_topic(name, self._broker.limits.max_topic_levels)
        except InvalidTopic as wrong:
            return str(wrong)
        refusal = self._refuse(name)
        return "" if refusal is None else refusal.text

    # What a broker before this one has published

    def _count_published(self, pending: Pending) -> dict[str, int]:
        published = {}
        for stream in self._journal.streams:
            since = pending.since.get(stream.name, 0)
            reader = StreamReader(self._journal.folder.streams / stream.name)
            count = 0
            for piece in reader.read(since, columns=["offset", "client_id"]):
                if isinstance(piece, Damage):
                    raise QueryError(f"it cannot be told what was published already: {piece}")
                count += pc.sum(pc.equal(piece.column(1), self._origin)).as_py() or 0
            published[stream.name] = count
        return published

    def _counted(self, published: dict[str, int]) -> None:
        self._skip = published
        self._publish()

    def _without_published(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out what lies in the log already: of each stream, so many messages from the first on."""
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

    # Publishing

    def _publish(self) -> None:
        assert self.state.pending is not None
        account = self._account
        self._meter = None if account is None else account.meter
        self._rows = self._staging.read(self.state.name, self.state.pending.parts)
        self._run(self._next, self._came)

    def _next(self) -> list[Batch] | None:
        """Return the next messages; None if there are no more."""
        rows = next(self._rows, None)
        if rows is None:
            return None
        rows = self._without_published(rows)
        return batches_of(rows, self._origin) if rows.num_rows else []

    def _came(self, batches: list[Batch] | None) -> None:
        if batches is None or self._fault:
            self._published(False, None)
            return
        self._ready.extend(batches)
        self._publish_some()

    def go_on(self) -> None:
        """Publish for a turn."""
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
        self._run(self._next, self._came)

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
        """Publish a batch, for the sink's owner if that is metered."""
        meter = self._meter
        if meter is None:
            self._broker.publishing.publish(batch, route, self._published)
        else:
            meter.charge(batch.count, len(batch.data))
            self._broker.publishing.publish_for(meter, batch, route, self._published)

    @property
    def _account(self) -> Account | None:
        """The account of the sink's owner; None if it has none, or it gave no name."""
        owner = self.state.owner
        return self._broker.quotas.restored(f"user:{owner}") if owner else None

    def _published(self, matched: bool, fault: Fault | None) -> None:
        self._left -= 1
        if fault is not None:
            self._fault = fault.text
        if self._left:
            return
        if self._fault:
            self._end(False, self._fault)  # what is missing is published when it is asked for again
            return
        state = self.state
        state.batch, state.used, state.pending = self._batch, self._journal.wall(), None
        self._journal.save_sink(state)
        self._journal.after(partial(self._end, True, ""))

    def _end(self, committed: bool, wrong: str) -> None:
        """Remove what is not needed any more, and then say how it went: who is told may stage at once."""
        told = partial(self._ended, committed, wrong)
        if committed:  # whatever else is there was staged for it, by someone who failed
            self._sinks.remove(self.state.name, None, told, besides=self)
        elif self.state.pending is None:
            self._sinks.remove(self.state.name, self.parts, told, besides=self)
        else:
            told("")

    def _ended(self, committed: bool, wrong: str, left: str) -> None:
        log_what_is_wrong(left)
        try:
            self._answer(committed, wrong)
        except Exception:  # whoever it is, the others are waiting
            logger.exception("internal error in the answer to a commit of sink %s", self.state.name)
        self._sinks.ended()

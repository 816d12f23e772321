"""Requests about the log's streams, and for permission to read them."""

from __future__ import annotations

from collections.abc import Mapping

from pyrite.broker.access import Credentials
from pyrite.broker.core import Broker
from pyrite.ipc.api.log import (
    ListReaders,
    ListStreams,
    ReaderInfo,
    Readers,
    ReadMessages,
    StreamInfo,
    Streams,
)
from pyrite.ipc.problem import Problem
from pyrite.ipc.server import Call
from pyrite.server.api.checks import check, checked_filter
from pyrite.server.gate import answers
from pyrite.server.log_metrics import Sizes, StreamSize
from pyrite.server.log_readers import LogReader, LogReaders

_UNKNOWN = StreamSize(0, 0)


class LogRequests:
    """Answers requests about the log."""

    def __init__(self, broker: Broker, sizes: Sizes, readers: LogReaders) -> None:
        self._broker = broker
        self._sizes = sizes
        self._readers = readers

    @answers(ListStreams)
    def streams(self, caller: Credentials, request: ListStreams, call: Call[Streams]) -> None:
        """Return the streams that the caller may pull, and their filters that it may pull."""
        allowed = self._allowed(caller)
        if not allowed:
            call.reply(Streams([], bool(self._broker.journal.streams)))
        else:
            self._sizes.measure(
                lambda sizes: call.attempt(lambda: call.reply(self._described(allowed, sizes)))
            )

    def _allowed(self, caller: Credentials) -> dict[str, list[str]]:
        """Return the filters that the caller may pull, by stream."""
        policy = self._broker.policy
        allowed = {}
        for stream in self._broker.journal.streams:
            if any(policy.refuse_everywhere(caller, ["pull"], one) is None for one in stream.filters):
                topics = [one for one in stream.filters if policy.refuse_pull(caller, one) is None]
                allowed[stream.name] = [topic.decode() for topic in topics]
        return allowed

    def _described(self, allowed: Mapping[str, list[str]], sizes: Mapping[str, StreamSize]) -> Streams:
        journal = self._broker.journal
        fault = None if journal.fault is None else journal.fault.text
        streams = []
        withheld = False
        for stream in journal.streams:
            topics = allowed.get(stream.name)
            if topics is None:
                withheld = True
                continue
            withheld = withheld or len(topics) < len(stream.filters)
            size = sizes.get(stream.name, _UNKNOWN)
            streams.append(
                StreamInfo(
                    stream.name,
                    topics,
                    journal.earliest(stream),
                    stream.routed,
                    size.bytes,
                    size.segments,
                    fault,
                )
            )
        return Streams(streams, withheld)

    @answers(ListReaders)
    def readers(self, caller: Credentials, request: ListReaders, call: Call[Readers]) -> None:
        """Return the named readers; without the right `admin` on `#`, the caller's."""
        broker = self._broker
        is_admin = broker.policy.refuse_admin(caller) is None
        user = caller.username or caller.address
        found = [one for one in self._readers.all() if is_admin or one.user == user]
        call.reply(Readers([self._described_reader(one) for one in found]))

    def _described_reader(self, one: LogReader) -> ReaderInfo:
        seconds = round(self._broker.now - one.at, 1)
        return ReaderInfo(one.name, one.user, one.stream.name, one.offset, one.lag, seconds)

    @answers(ReadMessages)
    def read(self, caller: Credentials, request: ReadMessages, call: Call[None]) -> None:
        """Check that the caller may read messages of a filter; the HTTP process reads them."""
        topic_filter = checked_filter(self._broker, request.filter)
        check(self._broker.policy.refuse_pull(caller, topic_filter))
        if request.name not in [one.name for one in self._broker.journal.streams]:
            raise Problem(404, f"there is no stream {request.name!r}")
        call.reply(None)

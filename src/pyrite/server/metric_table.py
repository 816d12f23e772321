"""All metrics of the broker, in one table.

$SYS, Prometheus, the API and `pyrite top` take names, units and values from it; the dashboard reads $SYS and
the API. A new metric is a new row. docs/operations.md has the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import NamedTuple

from pyrite import __version__
from pyrite.broker.figures import Figures
from pyrite.broker.journal import Stream
from pyrite.ipc.api.metrics import COUNTER, GAUGE, Sample, Value
from pyrite.server.metrics import Metrics

BYTES, MESSAGES, SECONDS, OTHER = "bytes", "messages", "seconds", ""
"""Units. Times are in milliseconds in $SYS."""

Number = int | float


def whole(value: Number) -> str:
    """Write a whole number for $SYS."""
    return str(int(value))


def milliseconds(value: Number) -> str:
    """Write seconds as milliseconds for $SYS."""
    return f"{value * 1e3:.2f}"


def seconds(value: Number) -> str:
    """Write whole seconds for $SYS, as mosquitto does."""
    return f"{int(value)} seconds"


class Metric(NamedTuple):
    """One metric."""

    name: str
    """Its name in Prometheus, without `pyrite_`; empty for one that only $SYS has."""
    kind: str
    unit: str
    help: str
    read: Callable[[Metrics], Number | None]
    topics: list[str] = []
    """Its topics under $SYS/broker/; the first is its own, others are names that mosquitto's users know."""
    form: Callable[[Number], str] = whole
    """How $SYS writes it."""
    needs_log: bool = False
    """Whether $SYS has it only with a log."""

    def sample(self, values: list[Value]) -> Sample:
        """Return the metric with its values."""
        return Sample(self.name, self.kind, self.unit, self.help, self.topics, values)


class StreamMetric(NamedTuple):
    """One metric of each stream."""

    name: str
    unit: str
    help: str
    read: Callable[[Metrics, Stream], int | None]
    topic: str
    """Its topic under $SYS/broker/log/streams/NAME/; empty if $SYS does not have it."""

    @property
    def topics(self) -> list[str]:
        """Its topic under $SYS/broker/."""
        return [f"log/streams/NAME/{self.topic}"] if self.topic else []


INFO_NAME, INFO_HELP = "info", "Always 1; the label `version` is the broker's version."


def _figure(name: str) -> Callable[[Metrics], Number]:
    """Return what reads one of the broker's counters."""
    read: Callable[[Figures], Number] = attrgetter(name)
    return lambda now: read(now.figures)


METRICS = (
    Metric(
        "received_bytes_total",
        COUNTER,
        BYTES,
        "Bytes received from clients.",
        _figure("bytes_received"),
        ["bytes/received"],
    ),
    Metric(
        "sent_bytes_total", COUNTER, BYTES, "Bytes sent to clients.", _figure("bytes_sent"), ["bytes/sent"]
    ),
    Metric(
        "sessions",
        GAUGE,
        OTHER,
        "Sessions, connected or not.",
        lambda now: len(now.broker.sessions.by_id),
        ["clients/total"],
    ),
    Metric(
        "connections",
        GAUGE,
        OTHER,
        "Connected clients.",
        _figure("connections"),
        ["clients/connected", "clients/active"],
    ),
    Metric(
        "",
        GAUGE,
        OTHER,
        "Sessions whose client is away.",
        lambda now: now.disconnected,
        ["clients/disconnected", "clients/inactive"],
    ),
    Metric(
        "sessions_maximum",
        GAUGE,
        OTHER,
        "The most sessions at one time.",
        _figure("clients_maximum"),
        ["clients/maximum"],
    ),
    Metric(
        "sessions_expired_total",
        COUNTER,
        OTHER,
        "Sessions that expired.",
        _figure("clients_expired"),
        ["clients/expired"],
    ),
    Metric(
        "connections_accepted_total", COUNTER, OTHER, "Accepted connections.", _figure("connections_accepted")
    ),
    Metric(
        "connections_refused_total",
        COUNTER,
        OTHER,
        "Refused connections.",
        _figure("connections_refused"),
        ["clients/refused"],
    ),
    Metric(
        "sessions_behind",
        GAUGE,
        OTHER,
        "Connected clients that are sent messages from the log, as they were away or are slow.",
        _figure("sessions_behind"),
        ["clients/behind"],
    ),
    Metric(
        "packets_received_total",
        COUNTER,
        OTHER,
        "Packets received, other than PUBLISH.",
        _figure("packets_received"),
    ),
    Metric(
        "packets_sent_total", COUNTER, OTHER, "Packets sent, other than PUBLISH.", _figure("packets_sent")
    ),
    Metric(
        "",
        COUNTER,
        OTHER,
        "Packets received, of all kinds.",
        lambda now: now.figures.packets_received + now.figures.publish_received,
        ["messages/received"],
    ),
    Metric(
        "",
        COUNTER,
        OTHER,
        "Packets sent, of all kinds.",
        lambda now: now.figures.packets_sent + now.figures.publish_sent,
        ["messages/sent"],
    ),
    Metric(
        "messages_queued",
        GAUGE,
        MESSAGES,
        "Messages that wait in memory for sessions.",
        _figure("messages_stored"),
    ),
    Metric(
        "",
        GAUGE,
        MESSAGES,
        "Messages that wait in memory for sessions, and retained messages.",
        lambda now: now.stored,
        ["messages/stored", "store/messages/count"],
    ),
    Metric(
        "publish_received_total",
        COUNTER,
        MESSAGES,
        "Messages received.",
        _figure("publish_received"),
        ["publish/messages/received"],
    ),
    Metric(
        "publish_sent_total",
        COUNTER,
        MESSAGES,
        "Messages sent.",
        _figure("publish_sent"),
        ["publish/messages/sent"],
    ),
    Metric(
        "messages_dropped_total",
        COUNTER,
        MESSAGES,
        "Messages not delivered: no room for a slow client, too large for it, or not allowed.",
        _figure("messages_dropped"),
        ["publish/messages/dropped"],
    ),
    Metric(
        "publish_received_bytes_total",
        COUNTER,
        BYTES,
        "Bytes of messages received.",
        _figure("publish_bytes_received"),
        ["publish/bytes/received"],
    ),
    Metric(
        "publish_sent_bytes_total",
        COUNTER,
        BYTES,
        "Bytes of messages sent.",
        _figure("publish_bytes_sent"),
        ["publish/bytes/sent"],
    ),
    Metric(
        "retained_messages",
        GAUGE,
        MESSAGES,
        "Retained messages, those of $SYS included.",
        lambda now: len(now.broker.retained),
        ["retained messages/count"],
    ),
    Metric(
        "retained_bytes",
        GAUGE,
        BYTES,
        "Bytes of retained messages, without those of $SYS.",
        lambda now: now.broker.retained.bytes,
        ["retained messages/bytes"],
    ),
    Metric(
        "retained_refused_total",
        COUNTER,
        MESSAGES,
        "Messages that were not retained, as there were too many.",
        _figure("retained_refused"),
    ),
    Metric(
        "quota_refused_total",
        COUNTER,
        OTHER,
        "Connections, subscriptions, consumers, messages and reads that a user's quota refused.",
        _figure("quota_refused"),
        ["quotas/refused"],
    ),
    Metric(
        "publishers_throttled_total",
        COUNTER,
        OTHER,
        "Times that a publisher was paused by its user's rate quota.",
        _figure("publishers_throttled"),
        ["quotas/throttled"],
    ),
    Metric(
        "subscriptions",
        GAUGE,
        OTHER,
        "Subscriptions, without shared ones.",
        lambda now: now.broker.subscriptions.count,
        ["subscriptions/count"],
    ),
    Metric(
        "shared_subscriptions",
        GAUGE,
        OTHER,
        "Shared subscriptions.",
        lambda now: now.broker.subscriptions.shared_count,
        ["shared_subscriptions/count"],
    ),
    Metric(
        "created_topics",
        GAUGE,
        OTHER,
        "Topics that were created.",
        lambda now: len(now.broker.catalog.created),
    ),
    Metric(
        "consumers",
        GAUGE,
        OTHER,
        "Named consumers of pull.",
        lambda now: len(now.broker.consumers),
        ["consumers/count"],
        needs_log=True,
    ),
    Metric(
        "consumers_pending_messages",
        GAUGE,
        MESSAGES,
        "Messages that were pulled and not acknowledged.",
        lambda now: now.pending,
        ["consumers/pending"],
        needs_log=True,
    ),
    Metric(
        "log_written_messages_total",
        COUNTER,
        MESSAGES,
        "Messages written to the log.",
        _figure("log_messages"),
        ["log/messages/written"],
        needs_log=True,
    ),
    Metric(
        "log_written_bytes_total",
        COUNTER,
        BYTES,
        "Bytes of messages written to the log, as they came.",
        _figure("log_bytes"),
        ["log/bytes/written"],
        needs_log=True,
    ),
    Metric(
        "log_commits_total",
        COUNTER,
        OTHER,
        "Commits: groups of messages written and synced together.",
        _figure("log_commits"),
        ["log/commits/count"],
        needs_log=True,
    ),
    Metric(
        "log_commit_median_seconds",
        GAUGE,
        SECONDS,
        "The median time of a commit, in the last interval of $SYS.",
        lambda now: now.commit_median,
        ["log/commits/median"],
        milliseconds,
    ),
    Metric(
        "log_commit_longest_seconds",
        GAUGE,
        SECONDS,
        "The longest time of a commit, in the last interval of $SYS.",
        lambda now: now.commit_longest,
        ["log/commits/longest"],
        milliseconds,
    ),
    Metric(
        "log_lost_messages_total",
        COUNTER,
        MESSAGES,
        "QoS 0 messages that the log could not keep, as the disk failed.",
        _figure("log_lost"),
        ["log/lost"],
        needs_log=True,
    ),
    Metric(
        "log_damaged_places",
        GAUGE,
        OTHER,
        "Damaged places found in the log.",
        lambda now: now.broker.journal.damages_found,
        ["log/damaged"],
        needs_log=True,
    ),
    Metric(
        "log_failing",
        GAUGE,
        OTHER,
        "1 while the log cannot be written, 0 otherwise.",
        lambda now: int(now.broker.journal.fault is not None),
    ),
    Metric(
        "loop_longest_block_seconds",
        GAUGE,
        SECONDS,
        "The longest time that the event loop was busy with one thing, since the start.",
        _figure("longest_block"),
        ["loop/longest block"],
        milliseconds,
    ),
    Metric(
        "loop_longest_log_block_seconds",
        GAUGE,
        SECONDS,
        "The same, for work on the log.",
        _figure("longest_log_block"),
        ["loop/longest block by the log"],
        milliseconds,
    ),
    Metric(
        "uptime_seconds",
        GAUGE,
        SECONDS,
        "Seconds since the broker started.",
        lambda now: now.uptime,
        ["uptime"],
        seconds,
    ),
    Metric(
        "process_cpu_seconds_total",
        COUNTER,
        SECONDS,
        "CPU time of the broker's process.",
        lambda now: now.cpu_time,
    ),
    Metric(
        "process_resident_memory_bytes",
        GAUGE,
        BYTES,
        "Memory of the broker's process.",
        lambda now: now.memory,
    ),
)


def _bytes_on_disk(now: Metrics, stream: Stream) -> int | None:
    size = now.sizes.known.get(stream.name)
    return None if size is None else size.bytes


def _segments(now: Metrics, stream: Stream) -> int | None:
    size = now.sizes.known.get(stream.name)
    return None if size is None else size.segments


STREAM_METRICS = (
    StreamMetric(
        "stream_first_offset",
        OTHER,
        "The offset of the oldest message that a stream keeps.",
        lambda now, stream: now.broker.journal.earliest(stream),
        "first",
    ),
    StreamMetric(
        "stream_end_offset",
        OTHER,
        "The offset that the next message of a stream gets.",
        lambda now, stream: stream.routed,
        "offset",
    ),
    StreamMetric("stream_size_bytes", BYTES, "Bytes of a stream on disk.", _bytes_on_disk, "bytes"),
    StreamMetric("stream_segments", OTHER, "Segments of a stream.", _segments, ""),
)


def samples(metrics: Metrics) -> Iterator[Sample]:
    """Yield the metrics that have a value."""
    yield Sample(INFO_NAME, GAUGE, OTHER, INFO_HELP, [], [Value(1, {"version": __version__})])
    for metric in METRICS:
        value = metric.read(metrics) if metric.name else None
        if value is not None:
            yield metric.sample([Value(value)])
    streams = metrics.broker.journal.streams
    for one in STREAM_METRICS:
        values = [(stream.name, one.read(metrics, stream)) for stream in streams]
        labelled = [Value(value, {"stream": name}) for name, value in values if value is not None]
        if labelled:
            yield Sample(one.name, GAUGE, one.unit, one.help, one.topics, labelled)

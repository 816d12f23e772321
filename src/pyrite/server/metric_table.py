"""All metrics of the broker, in one table.

$SYS, Prometheus, the API and `pyrite top` use its names, units and values; the dashboard reads $SYS and the
API. A new metric is a new row. docs/operations.md has the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyrite import __version__
from pyrite.broker.journal import Stream
from pyrite.ipc.api.metrics import COUNTER, GAUGE, Sample, Value
from pyrite.server.metrics import Metrics

BYTES, MESSAGES, SECONDS, OTHER = "bytes", "messages", "seconds", ""
"""Units. Times are in milliseconds in $SYS."""

Number = int | float


def whole(value: Number) -> str:
    """Format a whole number for $SYS."""
    return str(int(value))


def milliseconds(value: Number) -> str:
    """Format seconds as milliseconds for $SYS."""
    return f"{value * 1e3:.2f}"


def seconds(value: Number) -> str:
    """Format whole seconds for $SYS, like mosquitto."""
    return f"{int(value)} seconds"


@dataclass(frozen=True)
class Metric:
    """One metric."""

    name: str
    """The name in Prometheus, without `pyrite_`; empty for a metric of $SYS only."""
    unit: str
    source: str | Callable[[Metrics], Number | None]
    """A counter of Figures, by name, or a function."""
    help: str
    topics: Sequence[str] = ()
    """The topics under $SYS/broker/; the first is Pyrite's own, others are mosquitto's names."""
    form: Callable[[Number], str] = whole
    """Formats the value for $SYS."""
    needs_log: bool = False
    """True if $SYS has the metric only with a log."""

    @property
    def kind(self) -> str:
        return COUNTER if self.name.endswith("_total") else GAUGE

    def read(self, now: Metrics) -> Number | None:
        """Return the current value, or None if there is none."""
        source = self.source
        if isinstance(source, str):
            value: Number = getattr(now.figures, source)
            return value
        return source(now)


class StreamMetric(NamedTuple):
    """One metric of each stream."""

    name: str
    unit: str
    help: str
    read: Callable[[Metrics, Stream], int | None]
    topic: str
    """The topic under $SYS/broker/log/streams/NAME/; empty for none."""

    @property
    def topics(self) -> list[str]:
        """The topic under $SYS/broker/."""
        return [f"log/streams/NAME/{self.topic}"] if self.topic else []


INFO_NAME, INFO_HELP = "info", "Always 1; the label `version` is the broker's version."


# fmt: off
METRICS = (
    Metric("received_bytes_total", BYTES, "bytes_received",
           "Bytes received from clients.", ["bytes/received"]),
    Metric("sent_bytes_total", BYTES, "bytes_sent", "Bytes sent to clients.", ["bytes/sent"]),
    Metric("sessions", OTHER, lambda now: len(now.broker.sessions.by_id),
           "Sessions, connected or not.", ["clients/total"]),
    Metric("connections", OTHER, "connections",
           "Connected clients.", ["clients/connected", "clients/active"]),
    Metric("", OTHER, lambda now: now.disconnected,
           "Sessions of disconnected clients.", ["clients/disconnected", "clients/inactive"]),
    Metric("sessions_maximum", OTHER, "clients_maximum",
           "Maximum number of sessions.", ["clients/maximum"]),
    Metric("sessions_expired_total", OTHER, "clients_expired", "Expired sessions.", ["clients/expired"]),
    Metric("connections_accepted_total", OTHER, "connections_accepted", "Accepted connections."),
    Metric("connections_refused_total", OTHER, "connections_refused",
           "Refused connections.", ["clients/refused"]),
    Metric("sessions_behind", OTHER, "sessions_behind",
           "Connected clients that read messages from the log because they were away or are slow.",
           ["clients/behind"]),
    Metric("packets_received_total", OTHER, "packets_received", "Packets received, other than PUBLISH."),
    Metric("packets_sent_total", OTHER, "packets_sent", "Packets sent, other than PUBLISH."),
    Metric("", OTHER, lambda now: now.figures.packets_received + now.figures.publish_received,
           "Packets received, of all kinds.", ["messages/received"]),
    Metric("", OTHER, lambda now: now.figures.packets_sent + now.figures.publish_sent,
           "Packets sent, of all kinds.", ["messages/sent"]),
    Metric("messages_queued", MESSAGES, "messages_stored", "Messages waiting in memory for sessions."),
    Metric("", MESSAGES, lambda now: now.stored,
           "Messages that wait in memory for sessions, and retained messages.",
           ["messages/stored", "store/messages/count"]),
    Metric("publish_received_total", MESSAGES, "publish_received",
           "Messages received.", ["publish/messages/received"]),
    Metric("publish_sent_total", MESSAGES, "publish_sent", "Messages sent.", ["publish/messages/sent"]),
    Metric("messages_dropped_total", MESSAGES, "messages_dropped",
           "Messages not delivered: the client is slow, the message too large, or not allowed.",
           ["publish/messages/dropped"]),
    Metric("publish_received_bytes_total", BYTES, "publish_bytes_received",
           "Bytes of messages received.", ["publish/bytes/received"]),
    Metric("publish_sent_bytes_total", BYTES, "publish_bytes_sent",
           "Bytes of messages sent.", ["publish/bytes/sent"]),
    Metric("retained_messages", MESSAGES, lambda now: len(now.broker.retained),
           "Retained messages, including those of $SYS.", ["retained messages/count"]),
    Metric("retained_bytes", BYTES, lambda now: now.broker.retained.bytes,
           "Bytes of retained messages, without those of $SYS.", ["retained messages/bytes"]),
    Metric("retained_refused_total", MESSAGES, "retained_refused",
           "Messages not retained because a limit was reached."),
    Metric("quota_refused_total", OTHER, "quota_refused",
           "Connections, subscriptions, consumers, messages and reads that a user's quota refused.",
           ["quotas/refused"]),
    Metric("publishers_throttled_total", OTHER, "publishers_throttled",
           "Pauses of publishers by their user's rate quota.", ["quotas/throttled"]),
    Metric("subscriptions", OTHER, lambda now: now.broker.subscriptions.count,
           "Subscriptions, without shared ones.", ["subscriptions/count"]),
    Metric("shared_subscriptions", OTHER, lambda now: now.broker.subscriptions.shared_count,
           "Shared subscriptions.", ["shared_subscriptions/count"]),
    Metric("created_topics", OTHER, lambda now: len(now.broker.catalog.created), "Created topics."),
    Metric("consumers", OTHER, lambda now: len(now.broker.consumers),
           "Consumers.", ["consumers/count"], needs_log=True),
    Metric("consumers_pending_messages", MESSAGES, lambda now: now.pending,
           "Messages fetched by consumers and not acknowledged.", ["consumers/pending"], needs_log=True),
    Metric("log_written_messages_total", MESSAGES, "log_messages",
           "Messages written to the log.", ["log/messages/written"], needs_log=True),
    Metric("log_written_bytes_total", BYTES, "log_bytes",
           "Bytes of messages written to the log, as received.", ["log/bytes/written"], needs_log=True),
    Metric("log_commits_total", OTHER, "log_commits",
           "Commits: groups of messages that are synced together.", ["log/commits/count"], needs_log=True),
    Metric("log_commit_median_seconds", SECONDS, lambda now: now.commit_median,
           "Median duration of commits in the last interval of $SYS.",
           ["log/commits/median"], form=milliseconds),
    Metric("log_commit_longest_seconds", SECONDS, lambda now: now.commit_longest,
           "Longest commit in the last interval of $SYS.",
           ["log/commits/longest"], form=milliseconds),
    Metric("log_lost_messages_total", MESSAGES, "log_lost",
           "QoS 0 messages lost because the disk failed.", ["log/lost"], needs_log=True),
    Metric("log_damaged_places", OTHER, lambda now: now.broker.journal.damages_found,
           "Damaged places found in the log.", ["log/damaged"], needs_log=True),
    Metric("log_failing", OTHER, lambda now: int(now.broker.journal.fault is not None),
           "1 while the log cannot be written, 0 otherwise."),
    Metric("loop_longest_block_seconds", SECONDS, "longest_block",
           "Longest block of the event loop since the start.",
           ["loop/longest block"], form=milliseconds),
    Metric("loop_longest_log_block_seconds", SECONDS, "longest_log_block",
           "Longest block of the event loop by the log since the start.",
           ["loop/longest block by the log"], form=milliseconds),
    Metric("cluster_quorum", OTHER, lambda now: None if now.node is None else int(now.node.has_quorum),
           "1 if this node of a cluster reaches a quorum, 0 if not."),
    Metric("cluster_nodes", OTHER, lambda now: None if now.node is None else now.node.nodes_here,
           "Nodes of the cluster that are there, including this one."),
    Metric("cluster_applied_sequence", OTHER, lambda now: None if now.node is None else now.node.sequence,
           "The last group of the cluster that this node has applied."),
    Metric("cluster_lag_groups", OTHER, lambda now: None if now.node is None else now.node.lag,
           "Groups that the engine holds and this node has not applied."),
    Metric("cluster_unconfirmed_groups", OTHER,
           lambda now: None if now.node is None else now.node.unconfirmed,
           "Groups of this node that the engine has not confirmed."),
    Metric("uptime_seconds", SECONDS, lambda now: now.uptime,
           "Seconds since the broker started.", ["uptime"], form=seconds),
    Metric("process_cpu_seconds_total", SECONDS, lambda now: now.cpu_time,
           "CPU time of the broker's process."),
    Metric("process_resident_memory_bytes", BYTES, lambda now: now.memory, "Memory of the broker's process."),
)
# fmt: on


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
        "The offset of the oldest message of a stream.",
        lambda now, stream: now.broker.journal.earliest(stream),
        "first",
    ),
    StreamMetric(
        "stream_end_offset",
        OTHER,
        "The offset of the next message of a stream.",
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
            topics = list(metric.topics)
            yield Sample(metric.name, metric.kind, metric.unit, metric.help, topics, [Value(value)])
    streams = metrics.broker.journal.streams
    for one in STREAM_METRICS:
        values = [(stream.name, one.read(metrics, stream)) for stream in streams]
        labelled = [Value(value, {"stream": name}) for name, value in values if value is not None]
        if labelled:
            yield Sample(one.name, GAUGE, one.unit, one.help, one.topics, labelled)

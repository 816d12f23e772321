"""The broker's figures in Prometheus's text format."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from pyrite import __version__
from pyrite.http.messages import in_thread, log_of
from pyrite.http.requests import Json, ask, is_proxied, parameters, state_of
from pyrite.process.endpoints import is_loopback

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metric(NamedTuple):
    """One figure: what Prometheus calls it, of what kind it is, and what it says."""

    name: str
    kind: str
    help: str


COUNTER, GAUGE = "counter", "gauge"
FIGURES = {
    "bytes_received": Metric("received_bytes_total", COUNTER, "Bytes that came from clients."),
    "bytes_sent": Metric("sent_bytes_total", COUNTER, "Bytes that were sent to clients."),
    "clients_expired": Metric(
        "sessions_expired_total", COUNTER, "Sessions that ended as their time was over."
    ),
    "clients_maximum": Metric("sessions_maximum", GAUGE, "The most sessions that there were at one time."),
    "connections": Metric("connections", GAUGE, "Clients that are connected now."),
    "connections_accepted": Metric("connections_accepted_total", COUNTER, "Connections that were accepted."),
    "connections_refused": Metric("connections_refused_total", COUNTER, "Connections that were turned away."),
    "log_lost": Metric(
        "log_lost_messages_total",
        COUNTER,
        "Messages with QoS 0 that the log could not keep, as the disk failed.",
    ),
    "longest_block": Metric(
        "loop_longest_block_seconds",
        GAUGE,
        "The longest that the event loop was busy with one thing, since the start.",
    ),
    "longest_log_block": Metric(
        "loop_longest_log_block_seconds", GAUGE, "The same, for what had to be done for the log."
    ),
    "messages_dropped": Metric(
        "messages_dropped_total",
        COUNTER,
        "Messages not delivered: no room for a slow client, too large for it, or not allowed.",
    ),
    "messages_stored": Metric("messages_queued", GAUGE, "Messages that wait in memory for sessions."),
    "packets_received": Metric("packets_received_total", COUNTER, "Packets that came, other than PUBLISH."),
    "packets_sent": Metric("packets_sent_total", COUNTER, "Packets that were sent, other than PUBLISH."),
    "publish_bytes_received": Metric("publish_received_bytes_total", COUNTER, "Bytes of messages that came."),
    "publish_bytes_sent": Metric("publish_sent_bytes_total", COUNTER, "Bytes of messages that were sent."),
    "publish_received": Metric("publish_received_total", COUNTER, "Messages that came."),
    "publish_sent": Metric("publish_sent_total", COUNTER, "Messages that were sent."),
    "publishers_throttled": Metric(
        "publishers_throttled_total", COUNTER, "Times that a publisher had to wait for its user's rate quota."
    ),
    "quota_refused": Metric(
        "quota_refused_total",
        COUNTER,
        "Connections, subscriptions, consumers, messages and reads that a user's quota refused.",
    ),
    "retained_refused": Metric(
        "retained_refused_total", COUNTER, "Messages that were not retained, as there were too many."
    ),
    "log_bytes": Metric("log_written_bytes_total", COUNTER, "Bytes of messages that the log was given."),
    "log_commits": Metric("log_commits_total", COUNTER, "Times that the log was written."),
    "log_messages": Metric("log_written_messages_total", COUNTER, "Messages that the log was given."),
    "commit_median": Metric(
        "log_commit_median_seconds", GAUGE, "How long a commit of the log took, in the last interval of $SYS."
    ),
    "commit_longest": Metric(
        "log_commit_longest_seconds", GAUGE, "The longest that a commit took, in the last interval of $SYS."
    ),
    "sessions_behind": Metric(
        "sessions_behind", GAUGE, "Connected clients that read from the log to catch up."
    ),
    "sessions": Metric("sessions", GAUGE, "Sessions, connected or not."),
    "subscriptions": Metric("subscriptions", GAUGE, "Subscriptions, without shared ones."),
    "shared_subscriptions": Metric("shared_subscriptions", GAUGE, "Shared subscriptions."),
    "retained": Metric("retained_messages", GAUGE, "Retained messages, with those of $SYS."),
    "retained_bytes": Metric("retained_bytes", GAUGE, "Bytes of retained messages, without those of $SYS."),
    "created_topics": Metric("created_topics", GAUGE, "Topics that were created."),
    "consumers": Metric("consumers", GAUGE, "Named consumers of pull."),
    "consumers_pending": Metric(
        "consumers_pending_messages",
        GAUGE,
        "Messages that were pulled and not acknowledged, last time $SYS looked.",
    ),
    "log_damaged": Metric("log_damaged_places", GAUGE, "Damaged places of the log that were come across."),
    "log_fault": Metric("log_failing", GAUGE, "1 while the log cannot be written, 0 otherwise."),
    "uptime": Metric("uptime_seconds", GAUGE, "Seconds since the broker started."),
    "cpu": Metric("process_cpu_seconds_total", COUNTER, "Processor time of the broker's process."),
    "memory": Metric("process_resident_memory_bytes", GAUGE, "Memory of the broker's process."),
}
"""By what the broker calls them."""
MILLISECONDS = ("commit_median", "commit_longest")
STREAMS = {
    "first": Metric("stream_first_offset", GAUGE, "The offset of the oldest message that a stream keeps."),
    "end": Metric("stream_end_offset", GAUGE, "The offset after that of a stream's newest message."),
    "bytes": Metric("stream_size_bytes", GAUGE, "Bytes of a stream on disk."),
    "segments": Metric("stream_segments", GAUGE, "Segments of a stream."),
}
"""Of each stream, by what its figures are called; the label `stream` has its name."""
INFO = Metric("info", GAUGE, "Always 1; the label `version` has that of the broker.")
HTTP_CPU = Metric("http_process_cpu_seconds_total", COUNTER, "Processor time of the HTTP process.")
METRICS = [INFO, *FIGURES.values(), *STREAMS.values(), HTTP_CPU]
"""All there are; docs/operations.md has them in a table."""


async def metrics(request: Request) -> Response:
    """Return all figures; to who is on this machine, or has the right of admin on all topics."""
    parameters(request)
    state = state_of(request)
    if request.client is not None and is_loopback(request.client.host) and not is_proxied(request):
        found: Json = (await state.control.ask("figures here"))["found"]
    else:
        found = await ask(request, "figures")
    if found["streams"]:
        log = log_of(state)
        for one in found["streams"]:
            one |= await in_thread(request, log.sizes, one["name"])
    return Response("".join(_lines(found)), media_type=CONTENT_TYPE)


def _lines(found: Json) -> Iterator[str]:
    yield from _metric(INFO, [(f'{{version="{__version__}"}}', 1)])
    for key, metric in FIGURES.items():
        value = found.get(key)
        if value is not None:
            yield from _metric(metric, [("", value / 1_000 if key in MILLISECONDS else value)])
    for key, metric in STREAMS.items():
        yield from _metric(metric, [(f'{{stream="{one["name"]}"}}', one[key]) for one in found["streams"]])
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield from _metric(HTTP_CPU, [("", used.ru_utime + used.ru_stime)])


def _metric(metric: Metric, values: list[tuple[str, Any]]) -> Iterator[str]:
    """Write a metric, with a line for each of its values; a stream's name needs no escape."""
    if values:
        yield f"# HELP pyrite_{metric.name} {metric.help}\n# TYPE pyrite_{metric.name} {metric.kind}\n"
        for labels, value in values:
            yield f"pyrite_{metric.name}{labels} {float(value) if isinstance(value, float) else int(value)}\n"

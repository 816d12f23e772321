"""$SYS: the broker's metrics as retained messages, on the same topics as mosquitto's."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp

from pyrite.broker.message import Batch
from pyrite.broker.timers import NO_SLOT
from pyrite.server.metric_table import METRICS, STREAM_METRICS, Metric
from pyrite.server.metrics import Metrics

PREFIX = "$SYS/broker/"
READERS = "log/readers/"
MINUTES = (1, 5, 15)

_LOADS = {
    "messages/received": "messages/received",
    "messages/sent": "messages/sent",
    "publish/received": "publish/messages/received",
    "publish/sent": "publish/messages/sent",
    "publish/dropped": "publish/messages/dropped",
    "bytes/received": "bytes/received",
    "bytes/sent": "bytes/sent",
    "connections": "",
    "sockets": "",
}
"""Counters with moving averages: the name under load/, and the counter's own topic."""


def _counter(topic: str) -> Metric:
    name = "" if topic else "connections_accepted_total"
    return next(one for one in METRICS if (topic in one.topics if topic else one.name == name))


class System:
    """Publishes changed metrics every `interval` seconds."""

    def __init__(self, metrics: Metrics, interval: float, version: str) -> None:
        self.metrics = metrics
        self.broker = broker = metrics.broker
        self.interval = interval
        self.slot = NO_SLOT
        self._last = broker.now
        self._counters = {name: _counter(topic) for name, topic in _LOADS.items()}
        self._before: dict[str, float] = dict.fromkeys(_LOADS, 0)
        self._averages: dict[tuple[str, int], float] = {}
        self._published: dict[str, str] = {}
        self._publish("version", f"pyrite version {version}")
        broker.alert = self._publish_alarms
        self.due()

    def due(self) -> None:
        """Publish the metrics, and schedule the next time."""
        self.metrics.sample_commits()
        for metric in METRICS:
            self._publish_metric(metric)
        for name, value in self._load_averages():
            self._publish(name, value)
        if self.broker.journal.lasting:
            self.metrics.sizes.measure(_ignore)
            self._publish_log()
        self.broker.timers.set(self, self.broker.now + self.interval)

    def _publish_metric(self, metric: Metric) -> None:
        if metric.needs_log and not self.broker.journal.lasting:
            return
        value = metric.read(self.metrics) if metric.topics else None
        if value is not None:
            for topic in metric.topics:
                self._publish(topic, metric.form(value))

    def _publish_alarms(self) -> None:
        """Publish the log's alarms immediately."""
        for metric in METRICS:
            if metric.name in ("log_damaged_places", "log_lost_messages_total"):
                self._publish_metric(metric)
        self._publish_log()

    def _publish_log(self) -> None:
        journal = self.broker.journal
        self._publish("log/error", journal.fault.text if journal.fault is not None else "none")
        for stream in journal.streams:
            for metric in STREAM_METRICS:
                value = metric.read(self.metrics, stream) if metric.topic else None
                if value is not None:
                    self._publish(f"log/streams/{stream.name}/{metric.topic}", str(value))
        self._publish_readers()

    def _publish_readers(self) -> None:
        """Publish the lag of named readers, and remove that of readers that are forgotten."""
        lags: dict[str, int] = {}
        for one in self.metrics.readers.all():
            topic = f"{READERS}{one.name}/lag"
            lags[topic] = max(one.lag, lags.get(topic, 0))
        for topic in [one for one in self._published if one.startswith(READERS) and one not in lags]:
            self._publish(topic, "")
            del self._published[topic]
        for topic, lag in lags.items():
            self._publish(topic, str(lag))

    def _publish(self, name: str, value: str) -> None:
        if self._published.get(name) != value:
            self._published[name] = value
            self.broker.publishing.publish(Batch((PREFIX + name).encode(), value.encode(), retain=True))

    def _load_averages(self) -> Iterator[tuple[str, str]]:
        """Yield moving averages of counters, per minute, over the last 1, 5 and 15 minutes."""
        elapsed = self.broker.now - self._last
        self._last = self.broker.now
        if elapsed <= 0:
            return
        for name, counter in self._counters.items():
            count = counter.read(self.metrics) or 0
            per_minute = (count - self._before[name]) * 60 / elapsed
            self._before[name] = count
            for minutes in MINUTES:
                old = self._averages.get((name, minutes), 0.0)
                new = per_minute + exp(-elapsed / (60 * minutes)) * (old - per_minute)
                self._averages[name, minutes] = new
                yield f"load/{name}/{minutes}min", f"{new:.2f}"


def _ignore(_: object) -> None:
    pass

"""$SYS: the broker's figures as retained messages, under the names that mosquitto's users know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import exp
from statistics import median
from typing import TYPE_CHECKING

from pyrite.broker.message import Batch
from pyrite.broker.timers import NO_SLOT

if TYPE_CHECKING:
    from pyrite.broker.core import Broker

PREFIX = "$SYS/broker/"
MINUTES = (1, 5, 15)

# Name under load/: counters of Figures that are added up.
_LOADS = {
    "messages/received": ("packets_received", "publish_received"),
    "messages/sent": ("packets_sent", "publish_sent"),
    "publish/received": ("publish_received",),
    "publish/sent": ("publish_sent",),
    "publish/dropped": ("messages_dropped",),
    "bytes/received": ("bytes_received",),
    "bytes/sent": ("bytes_sent",),
    "connections": ("connections_accepted",),
    "sockets": ("connections_accepted",),
}


class System:
    """Publishes the figures every `interval` seconds; those that have not changed are left as they are."""

    def __init__(
        self,
        broker: Broker,
        interval: float,
        version: str,
        sizes: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.broker = broker
        self._sizes = sizes
        """Tells how many bytes streams have on disk, by name."""
        self.interval = interval
        self.slot = NO_SLOT
        self._started = self._last = broker.now
        self._before = dict.fromkeys(_LOADS, 0)
        self._loads: dict[tuple[str, int], float] = {}
        self._published: dict[str, str] = {}
        self._publish("version", f"pyrite version {version}")
        broker.alert = self._tell_of_the_log
        self.due()

    def due(self) -> None:
        """Publish the figures, and again after the interval."""
        for name, value in self._figures():
            self._publish(name, value)
        if self.broker.journal.lasting:
            for name, value in self._log_figures():
                self._publish(name, value)
            self._tell_of_the_log()
        self.broker.timers.set(self, self.broker.now + self.interval)

    def _tell_of_the_log(self) -> None:
        """Publish how the log is."""
        journal = self.broker.journal
        self._publish("log/error", journal.fault.text if journal.fault is not None else "none")
        self._publish("log/damaged", str(journal.damages_found))
        self._publish("log/lost", str(self.broker.figures.log_lost))
        for stream in journal.streams:
            self._publish(f"log/streams/{stream.name}/first", str(journal.earliest(stream)))
            self._publish(f"log/streams/{stream.name}/offset", str(stream.routed))

    def _log_figures(self) -> Iterator[tuple[str, str]]:
        """Yield how much was written, and how long it took since the last time."""
        broker, figures = self.broker, self.broker.figures
        times = list(figures.commit_times)
        figures.commit_times.clear()
        yield "log/messages/written", str(figures.log_messages)
        yield "log/bytes/written", str(figures.log_bytes)
        yield "log/commits/count", str(figures.log_commits)
        yield "log/commits/median", f"{median(times) * 1e3 if times else 0:.2f}"
        yield "log/commits/longest", f"{max(times, default=0) * 1e3:.2f}"
        yield "consumers/count", str(len(broker.consumers))
        yield "consumers/pending", str(sum(len(one.pending) for one in broker.consumers.values()))
        for name, size in self._sizes().items():
            yield f"log/streams/{name}/bytes", str(size)

    def _publish(self, name: str, value: str) -> None:
        if self._published.get(name) != value:
            self._published[name] = value
            self.broker.publish(Batch((PREFIX + name).encode(), value.encode(), retain=True))

    def _figures(self) -> Iterator[tuple[str, str]]:
        broker = self.broker
        figures = broker.figures
        total, connected = len(broker.sessions), figures.connections
        retained = len(broker.retained)
        yield "loop/longest block", f"{figures.longest_block * 1e3:.2f}"
        yield "loop/longest block by the log", f"{figures.longest_log_block * 1e3:.2f}"
        yield "uptime", f"{int(broker.now - self._started)} seconds"
        for name, number in (
            ("clients/total", total),
            ("clients/connected", connected),
            ("clients/active", connected),
            ("clients/disconnected", total - connected),
            ("clients/inactive", total - connected),
            ("clients/maximum", figures.clients_maximum),
            ("clients/expired", figures.clients_expired),
            ("clients/refused", figures.connections_refused),
            ("clients/behind", figures.sessions_behind),
            ("messages/received", figures.packets_received + figures.publish_received),
            ("messages/sent", figures.packets_sent + figures.publish_sent),
            ("messages/stored", figures.messages_stored + retained),
            ("store/messages/count", figures.messages_stored + retained),
            ("publish/messages/received", figures.publish_received),
            ("publish/messages/sent", figures.publish_sent),
            ("publish/messages/dropped", figures.messages_dropped),
            ("publish/bytes/received", figures.publish_bytes_received),
            ("publish/bytes/sent", figures.publish_bytes_sent),
            ("bytes/received", figures.bytes_received),
            ("bytes/sent", figures.bytes_sent),
            ("retained messages/count", retained),
            ("retained messages/bytes", broker.retained.bytes),
            ("quotas/refused", figures.quota_refused),
            ("quotas/throttled", figures.publishers_throttled),
            ("subscriptions/count", broker.subscriptions.count),
            ("shared_subscriptions/count", broker.subscriptions.shared_count),
        ):
            yield name, str(number)
        yield from self._load_averages()

    def _load_averages(self) -> Iterator[tuple[str, str]]:
        """Yield moving averages, a minute's worth each, over the last 1, 5 and 15 minutes."""
        elapsed = self.broker.now - self._last
        self._last = self.broker.now
        if elapsed <= 0:
            return
        figures = self.broker.figures
        for name, counters in _LOADS.items():
            count = sum(getattr(figures, counter) for counter in counters)
            a_minute = (count - self._before[name]) * 60 / elapsed
            self._before[name] = count
            for minutes in MINUTES:
                old = self._loads.get((name, minutes), 0.0)
                new = a_minute + exp(-elapsed / (60 * minutes)) * (old - a_minute)
                self._loads[name, minutes] = new
                yield f"load/{name}/{minutes}min", f"{new:.2f}"

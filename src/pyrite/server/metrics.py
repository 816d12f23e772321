"""The values of the broker's metrics, which metric_table.py reads."""

from __future__ import annotations

import resource
from statistics import median
from typing import TYPE_CHECKING

from pyrite.broker.core import Broker
from pyrite.broker.figures import Figures
from pyrite.server.log_metrics import Sizes
from pyrite.server.log_readers import LogReaders
from pyrite.server.memory import resident

if TYPE_CHECKING:
    from pyrite.server.cluster import ClusterNode


class Metrics:
    """The values of one broker's metrics."""

    def __init__(self, broker: Broker, sizes: Sizes | None = None, node: ClusterNode | None = None) -> None:
        self.broker = broker
        self.node = node
        """This broker as a node of a cluster, if it is one."""
        self.figures: Figures = broker.figures
        self.sizes = sizes or Sizes({})
        self.readers = LogReaders(broker)
        self._started = broker.now
        self.commit_median: float | None = None
        self.commit_longest: float | None = None
        """Seconds of commits between the last two calls of `sample_commits`."""

    @property
    def uptime(self) -> float:
        """Seconds since the start."""
        return self.broker.now - self._started

    @property
    def disconnected(self) -> int:
        """Sessions of disconnected clients."""
        return len(self.broker.sessions.by_id) - self.figures.connections

    @property
    def stored(self) -> int:
        """Messages waiting in memory for sessions, and retained messages."""
        return self.figures.messages_stored + len(self.broker.retained)

    @property
    def pending(self) -> int:
        """Messages fetched by consumers and not acknowledged."""
        return sum(len(one.pending) for one in self.broker.consumers.values())

    def sample_commits(self) -> None:
        """Summarize the commits since the last call."""
        times = list(self.figures.commit_times)
        self.figures.commit_times.clear()
        if self.broker.journal.lasting:
            self.commit_median = median(times) if times else 0.0
            self.commit_longest = max(times, default=0.0)

    @property
    def cpu_time(self) -> float:
        """Seconds of CPU time of this process."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    @property
    def memory(self) -> int | None:
        """Bytes of memory of this process."""
        return resident()

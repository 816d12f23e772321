"""Handlers for the requests of the HTTP process (pyrite/ipc/api), by subject.

They run in the broker's event loop, in short turns. Every request names its caller, whose rights are checked
before any work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pyrite.broker.core import Broker
from pyrite.ipc.server import Handler
from pyrite.server.api.broker import BrokerRequests
from pyrite.server.api.clients import ClientRequests
from pyrite.server.api.cluster import ClusterRequests
from pyrite.server.api.log import LogRequests
from pyrite.server.api.metrics import MetricsRequests
from pyrite.server.api.pages import PageTurns
from pyrite.server.api.publishing import PublishRequests
from pyrite.server.api.pulling import Later, PullRequests
from pyrite.server.api.quotas import QuotaRequests
from pyrite.server.api.tables import TableRequests
from pyrite.server.api.topics import TopicRequests
from pyrite.server.gate import Gate
from pyrite.server.listeners import Listener
from pyrite.server.metrics import Metrics


class Api:
    """The requests of one HTTP process."""

    def __init__(
        self,
        broker: Broker,
        metrics: Metrics,
        gate: Gate,
        listening: Callable[[], Sequence[Listener]],
        later: Later,
        tls: bool,
        tables: Collection[str],
    ) -> None:
        """`tables` names the streams that are tables."""
        turns = PageTurns(broker)
        self.about = BrokerRequests(metrics, listening, tls)
        self.pulls = PullRequests(broker, later)
        self.handlers: dict[type, Handler] = gate.handlers(
            self.about,
            self.pulls,
            ClientRequests(broker, turns),
            TopicRequests(broker, turns),
            QuotaRequests(broker, turns),
            LogRequests(broker, metrics.sizes, metrics.readers),
            PublishRequests(broker),
            MetricsRequests(metrics),
            ClusterRequests(metrics),
            TableRequests(broker, tables),
        )

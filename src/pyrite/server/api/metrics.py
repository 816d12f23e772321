"""Requests for the broker's metrics."""

from __future__ import annotations

from pyrite.broker.access import Credentials
from pyrite.ipc.api.metrics import GetMetrics, Samples, ScrapeLocalMetrics, ScrapeMetrics
from pyrite.ipc.messages import Request
from pyrite.ipc.server import Call
from pyrite.server.api.checks import check
from pyrite.server.gate import answers
from pyrite.server.metric_table import samples
from pyrite.server.metrics import Metrics


class MetricsRequests:
    """Answers requests for metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    @answers(GetMetrics, ScrapeMetrics)
    def metrics(self, caller: Credentials, request: Request[Samples], call: Call[Samples]) -> None:
        """Return all metrics to a caller with the right `admin` on `#`."""
        check(self._metrics.broker.policy.refuse_admin(caller))
        self._reply(call)

    @answers(ScrapeLocalMetrics)
    def local_metrics(self, caller: Credentials, request: Request[Samples], call: Call[Samples]) -> None:
        """Return all metrics to a client on this machine."""
        self._reply(call)

    def _reply(self, call: Call[Samples]) -> None:
        self._metrics.sizes.measure(lambda _: call.reply(Samples(list(samples(self._metrics)))))

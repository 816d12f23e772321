"""Requests about the broker itself: whether it is well, where it listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyrite import __version__
from pyrite.broker.access import Credentials, Refuse
from pyrite.ipc.api.broker import (
    BrokerInfo,
    CheckRight,
    GetBroker,
    GetHealth,
    GetReadiness,
    Health,
    Readiness,
)
from pyrite.ipc.messages import Given
from pyrite.ipc.server import Call
from pyrite.server.api.checks import check
from pyrite.server.gate import answers
from pyrite.server.listeners import Listener
from pyrite.server.metrics import Metrics


class BrokerRequests:
    """Answers requests about the broker."""

    def __init__(self, metrics: Metrics, listening: Callable[[], Sequence[Listener]], tls: bool) -> None:
        self._metrics = metrics
        self._broker = metrics.broker
        self._listening = listening
        self._tls = tls
        """Whether requests come over TLS: a browser's page from TLS opens no WebSocket without."""
        self.reloads = 0
        """How often users and rules were read again."""

    @answers(GetHealth)
    def health(self, who: Credentials, request: GetHealth, call: Call[Health]) -> None:
        """Answer: the broker is well."""
        call.reply(Health())

    @answers(GetReadiness)
    def readiness(self, who: Credentials, request: GetReadiness, call: Call[Readiness]) -> None:
        """Return whether clients are served as they should be."""
        fault = self._broker.journal.fault
        reason = fault.text if fault is not None else None if self._listening() else "the broker is starting"
        call.reply(Readiness(reason is None, reason))

    @answers(GetBroker)
    def describe(self, who: Credentials, request: GetBroker, call: Call[BrokerInfo]) -> None:
        """Describe the broker; a stranger is told only that a log-in is needed, and the WebSocket for it."""
        nobody = Credentials("", None, None, who.address)
        has_certificate = isinstance(call.caller, Given) and call.caller.certificate is not None
        users = not has_certificate and isinstance(self._broker.access.authenticate(nobody), Refuse)
        listening = self._listening()
        sockets = [one for one in listening if one.websocket]
        sockets.sort(key=lambda one: one.tls is not self._tls)
        websocket = str(sockets[0]) if sockets else None
        is_stranger = users and who.username is None
        call.reply(
            BrokerInfo(
                version=None if is_stranger else __version__,
                uptime_seconds=None if is_stranger else round(self._metrics.uptime, 1),
                listeners=[] if is_stranger else [str(one) for one in listening],
                websocket=websocket,
                users=users,
                user=who.username,
                reloads=self.reloads,
            )
        )

    @answers(CheckRight)
    def check_right(self, who: Credentials, request: CheckRight, call: Call[str]) -> None:
        """Return the user name for quotas, or refuse a caller that has a right on no topic."""
        check(self._broker.policy.refuse_everywhere(who, [request.right]))
        call.reply(who.asker.user)

"""Requests about the broker: health, readiness, listeners, rights."""

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
        """True if requests arrive over TLS: pages from https:// cannot open ws:// URLs."""
        self.reloads = 0
        """Number of reloads of users and rules."""

    @answers(GetHealth)
    def health(self, caller: Credentials, request: GetHealth, call: Call[Health]) -> None:
        """Confirm that the broker answers."""
        call.reply(Health())

    @answers(GetReadiness)
    def readiness(self, caller: Credentials, request: GetReadiness, call: Call[Readiness]) -> None:
        """Return whether listeners are open and the log can be written."""
        fault = self._broker.journal.fault
        reason = fault.text if fault is not None else None if self._listening() else "the broker is starting"
        call.reply(Readiness(reason is None, reason))

    @answers(GetBroker)
    def describe(self, caller: Credentials, request: GetBroker, call: Call[BrokerInfo]) -> None:
        """Describe the broker; unknown callers get only the WebSocket URL, and that a log-in is needed."""
        nobody = Credentials("", None, None, caller.address)
        has_certificate = isinstance(call.caller, Given) and call.caller.certificate is not None
        users = not has_certificate and isinstance(self._broker.access.authenticate(nobody), Refuse)
        listening = self._listening()
        sockets = [one for one in listening if one.websocket]
        sockets.sort(key=lambda one: one.tls is not self._tls)
        websocket = str(sockets[0]) if sockets else None
        is_unknown = users and caller.username is None
        call.reply(
            BrokerInfo(
                version=None if is_unknown else __version__,
                uptime_seconds=None if is_unknown else round(self._metrics.uptime, 1),
                listeners=[] if is_unknown else [str(one) for one in listening],
                websocket=websocket,
                users=users,
                user=caller.username,
                reloads=self.reloads,
            )
        )

    @answers(CheckRight)
    def check_right(self, caller: Credentials, request: CheckRight, call: Call[str]) -> None:
        """Return the caller's name for quotas; refuse a caller without the right on any topic."""
        check(self._broker.policy.refuse_everywhere(caller, [request.right]))
        call.reply(caller.asker.user)

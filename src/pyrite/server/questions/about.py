"""Questions about the broker itself: whether it is well, where it listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyrite import __version__
from pyrite.broker.access import Credentials, Refuse
from pyrite.broker.core import Broker
from pyrite.server.listeners import Listener
from pyrite.server.questions.problem import Message, Reply


class About:
    """Knows how the broker is."""

    def __init__(self, broker: Broker, listening: Callable[[], Sequence[Listener]], tls: bool) -> None:
        self._broker = broker
        self._listening = listening
        self._tls = tls
        """Whether who asks does so over TLS: a browser then opens no WebSocket without."""
        self._started = broker.now
        self.reloads = 0
        """How often users and rules were read again."""

    @property
    def uptime(self) -> float:
        """Seconds since the start."""
        return self._broker.now - self._started

    def health(self, message: Message, reply: Reply) -> None:
        """Tell that the broker answers."""
        reply({"status": "ok"})

    def ready(self, message: Message, reply: Reply) -> None:
        """Tell whether clients are served as they should be."""
        fault = self._broker.journal.fault
        reason = fault.text if fault is not None else None if self._listening() else "the broker is starting"
        reply({"ready": reason is None, "reason": reason})

    def broker(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Tell what this broker is, and who asks."""
        nobody = Credentials("", None, None, who.address)
        without = message["who"]["certificate"] is None
        users = without and isinstance(self._broker.access.authenticate(nobody), Refuse)
        listening = self._listening()
        sockets = [one for one in listening if one.websocket]
        sockets.sort(key=lambda one: one.tls is not self._tls)
        websocket = str(sockets[0]) if sockets else None
        if users and who.username is None:  # a stranger is told that a log-in is needed, and where
            reply(
                {
                    "version": None,
                    "uptime_seconds": None,
                    "listeners": [],
                    "websocket": websocket,
                    "users": True,
                    "user": None,
                    "reloads": self.reloads,
                }
            )
            return
        reply(
            {
                "version": __version__,
                "uptime_seconds": round(self.uptime, 1),
                "listeners": [str(one) for one in listening],
                "websocket": websocket,
                "users": users,
                "user": who.username,
                "reloads": self.reloads,
            }
        )

"""The broker's side of an HTTP process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyrite.ipc.messages import HttpSettings, Request
from pyrite.ipc.server import Handler
from pyrite.server.api import Api
from pyrite.server.api.pulling import Later
from pyrite.server.child import Child, ChildContext, log_settings, tls_settings
from pyrite.server.gate import Gate
from pyrite.server.listeners import Listener
from pyrite.server.metrics import Metrics


class HttpProcess(Child):
    """One HTTP listener."""

    name = "HTTP"
    module = "pyrite.http"

    def __init__(
        self,
        context: ChildContext,
        listener: Listener,
        metrics: Metrics,
        listening: Callable[[], Sequence[Listener]],
        later: Later,
    ) -> None:
        super().__init__(context, listener)
        self._gate = Gate(self.broker, self.reads, self)
        tables = [one.name for one in self.config.stream if one.table]
        self._api = Api(self.broker, metrics, self._gate, listening, later, listener.tls, tables)

    def settings(self) -> HttpSettings:
        """Return the settings of the process."""
        config, limits = self.config, self.config.limits
        return HttpSettings(
            data=None if config.ephemeral else str(config.data),
            sockets=self.descriptors,
            host=self.listener.host,
            is_local=self.listener.local,
            public_url=config.http.public_url,
            logging=log_settings(config),
            tls=tls_settings(config.tls) if self.listener.tls else None,
            max_payload=limits.max_packet_size,
            max_connections=limits.max_connections,
            max_connections_per_address=limits.max_connections_per_address,
            connect_timeout=limits.connect_timeout,
        )

    def handlers(self) -> Mapping[type[Request[Any]], Handler]:
        """Return the handlers of the process's requests."""
        return self._api.handlers

    def cancel(self, number: int) -> None:
        """Cancel a request whose answer is no longer needed."""
        self._api.pulls.cancel(number)
        super().cancel(number)

    def gone(self) -> None:
        """Cancel all requests, because the process has ended."""
        self._api.pulls.cancel_all()
        super().gone()

    def forget_callers(self) -> None:
        """Authenticate callers again, because users or rules may have changed."""
        self._gate.identity.forget()
        self._api.about.reloads += 1

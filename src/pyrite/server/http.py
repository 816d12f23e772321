"""The broker's side of its HTTP process: what that is to know, and who answers what it asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyrite.broker.core import Broker
from pyrite.ipc.channel import Message
from pyrite.server.child import Child, Question, log_settings, tls_settings
from pyrite.server.config import Config
from pyrite.server.listeners import Listener
from pyrite.server.questions import Later, Questions
from pyrite.server.reads import Reads


class HttpProcess(Child):
    """One HTTP listener."""

    name = "HTTP"
    module = "pyrite.http"
    sorry = {"status": 500, "detail": "internal error"}

    def __init__(
        self,
        config: Config,
        listener: Listener,
        broker: Broker,
        listening: Callable[[], Sequence[Listener]],
        at_work: Callable[[Callable[[], object]], None],
        later: Later,
        reads: Reads,
    ) -> None:
        super().__init__(listener, broker, at_work)
        self._config = config
        self._questions = Questions(
            broker, listening, lambda seconds, call: later(seconds, at_work, call), listener.tls, reads
        )

    def settings(self) -> Message:
        """Return what the process is to know."""
        limits = self._config.limits
        return {
            "data": None if self._config.ephemeral else str(self._config.data),
            "host": self.listener.host,
            "port": self.listener.port,
            "local": self.listener.local,
            "public_url": self._config.http.public_url,
            "logging": log_settings(self._config),
            "tls": tls_settings(self._config.tls) if self.listener.tls else None,
            "max_payload": limits.max_packet_size,
            "max_connections": limits.max_connections,
            "max_connections_per_address": limits.max_connections_per_address,
            "connect_timeout": limits.connect_timeout,
        }

    def questions(self) -> Mapping[str, Question]:
        """Return what the process may ask."""
        return self._questions.known

    def left(self, number: int) -> None:
        """Hear that no one waits any longer for the answer to a question."""
        self._questions.left(number)

    def ended(self, read: int) -> None:
        """Hear that a read of the log is over."""
        self._questions.ended(read)

    def gone(self) -> None:
        """Hear that the process has ended."""
        self._questions.gone()

    def renew(self, certificates_changed: bool, trust_changed: bool) -> None:
        """Have everyone checked again who asks."""
        self._questions.forget()
        super().renew(certificates_changed, trust_changed)

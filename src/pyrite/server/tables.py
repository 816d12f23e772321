"""The broker's side of the process that keeps the tables of streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyrite.broker.access import Credentials
from pyrite.ipc.messages import Request
from pyrite.ipc.server import Call, Handler
from pyrite.ipc.tables import ReportTable, TablesSettings
from pyrite.server.child import Child, ChildContext, log_settings
from pyrite.server.gate import Gate, answers
from pyrite.server.listeners import Listener

NO_LISTENER = Listener("tables", "", 0, "")


class TablesProcess(Child):
    """The process that keeps the tables. It has no listener."""

    name = "tables"
    module = "pyrite.tables"

    def __init__(self, context: ChildContext) -> None:
        super().__init__(context, NO_LISTENER)
        self._handlers = Gate(self.broker, self.reads, self).handlers(self)
        self.reported: dict[str, ReportTable] = {}
        """By stream, what its table held after the last commit."""

    def settings(self) -> TablesSettings:
        """Return the settings of the process."""
        config = self.config
        keep = {one.name: one.snapshots_keep for one in config.stream if one.table}
        return TablesSettings(str(config.data), config.tables.location, keep, log_settings(config))

    def handlers(self) -> Mapping[type[Request[Any]], Handler]:
        """Return the handlers of the process's requests."""
        return self._handlers

    @answers(ReportTable)
    def report(self, _: Credentials, request: ReportTable, call: Call[None]) -> None:
        """Note what a table holds."""
        self.reported[request.name] = request
        call.reply(None)

    def forget_callers(self) -> None:
        """Do nothing: the process has no callers."""

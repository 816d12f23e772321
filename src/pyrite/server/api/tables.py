"""Requests for streams as Iceberg tables: the broker checks rights, the HTTP process reads the metadata."""

from __future__ import annotations

from collections.abc import Collection

from pyrite.broker.access import Credentials
from pyrite.broker.core import Broker
from pyrite.broker.journal import Stream
from pyrite.broker.policy import Refusal
from pyrite.ipc.api.tables import (
    NAMESPACE,
    CatalogConfig,
    GetCatalogConfig,
    GetNamespace,
    ListNamespaces,
    ListTables,
    LoadTable,
    Namespace,
    Namespaces,
    TableName,
    TableNames,
)
from pyrite.ipc.problem import Problem
from pyrite.ipc.server import Call
from pyrite.server.api.checks import check
from pyrite.server.gate import answers

_ENDPOINTS = [
    f"{method} /v1/{{prefix}}/namespaces{path}"
    for path in ("", "/{namespace}", "/{namespace}/tables", "/{namespace}/tables/{table}")
    for method in (("GET",) if path in ("", "/{namespace}/tables") else ("GET", "HEAD"))
]
"""What a client may ask for, as Iceberg's specification writes it."""


class TableRequests:
    """Answers requests of the Iceberg REST catalog."""

    def __init__(self, broker: Broker, tables: Collection[str]) -> None:
        """`tables` names the streams that are tables."""
        self._broker = broker
        self._tables = frozenset(tables)

    @answers(GetCatalogConfig)
    def config(self, caller: Credentials, request: GetCatalogConfig, call: Call[CatalogConfig]) -> None:
        call.reply(CatalogConfig({}, {}, _ENDPOINTS))

    @answers(ListNamespaces)
    def namespaces(self, caller: Credentials, request: ListNamespaces, call: Call[Namespaces]) -> None:
        call.reply(Namespaces([] if request.parent else [[NAMESPACE]]))

    @answers(GetNamespace)
    def namespace(self, caller: Credentials, request: GetNamespace, call: Call[Namespace]) -> None:
        call.reply(Namespace([NAMESPACE], {}))

    @answers(ListTables)
    def tables(self, caller: Credentials, request: ListTables, call: Call[TableNames]) -> None:
        """Return the tables that the caller may load."""
        allowed = [one for one in self._streams() if self._refuse(caller, one) is None]
        call.reply(TableNames([TableName([NAMESPACE], one.name) for one in allowed]))

    @answers(LoadTable)
    def load(self, caller: Credentials, request: LoadTable, call: Call[None]) -> None:
        """Check that the caller may load a table; the HTTP process reads it."""
        for stream in self._streams():
            if stream.name == request.name:
                check(self._refuse(caller, stream))
                call.reply(None)
                return
        raise Problem(404, f"there is no table {request.name!r}; a stream is one with table = true")

    def _streams(self) -> list[Stream]:
        return [one for one in self._broker.journal.streams if one.name in self._tables]

    def _refuse(self, caller: Credentials, stream: Stream) -> Refusal | None:
        """Return why a client may not read all messages of a stream, or None."""
        policy = self._broker.policy
        refusals = (policy.refuse_pull(caller, one) for one in stream.filters)
        return next((one for one in refusals if one is not None), None)

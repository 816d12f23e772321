"""The requests of the HTTP API, and their answers, by subject.

Routes, validation, errors and the OpenAPI description are generated from these structures. The fields of a
request are parameters of its path and query, except for `body`, its JSON body. The HTTP process forwards a
request to the broker, and sends the broker's answer as JSON.
"""

from __future__ import annotations

from typing import Any

from pyrite.ipc.api.broker import GetBroker, GetHealth, GetReadiness
from pyrite.ipc.api.clients import DisconnectClient, GetClient, ListClients
from pyrite.ipc.api.cluster import GetCluster
from pyrite.ipc.api.endpoint import ApiRequest
from pyrite.ipc.api.log import Acknowledge, ListReaders, ListStreams, Pull, ReadMessages
from pyrite.ipc.api.metrics import GetMetrics, ScrapeMetrics
from pyrite.ipc.api.publishing import PublishMessage
from pyrite.ipc.api.quotas import ListQuotas
from pyrite.ipc.api.tables import GetCatalogConfig, GetNamespace, ListNamespaces, ListTables, LoadTable
from pyrite.ipc.api.topics import CreateTopic, DeleteTopic, GetTopic, ListLevels, ListTopics

ENDPOINTS: tuple[type[ApiRequest[Any]], ...] = (
    GetHealth,
    GetReadiness,
    ScrapeMetrics,
    GetMetrics,
    GetBroker,
    GetCluster,
    ListClients,
    GetClient,
    DisconnectClient,
    ListTopics,
    GetTopic,
    CreateTopic,
    DeleteTopic,
    ListLevels,
    ListStreams,
    ListReaders,
    ReadMessages,
    ListQuotas,
    PublishMessage,
    Pull,
    Acknowledge,
    GetCatalogConfig,
    ListNamespaces,
    GetNamespace,
    ListTables,
    LoadTable,
)

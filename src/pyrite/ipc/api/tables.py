"""Requests about streams as Iceberg tables: a read-only Iceberg REST catalog.

Paths, parameters and answers are those of Iceberg's REST catalog. It has one namespace, `pyrite`, with a
table for each stream with `table = true`. Whoever may pull everything that the stream captures may load it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from pyrite.ipc.api.endpoint import ApiRequest, Endpoint, Shown

NAMESPACE = "pyrite"
PREFIX = "/iceberg/"
"""The beginning of the catalog's paths."""
_V1 = f"{PREFIX}v1"

Page = Annotated[str, Meta(description="Ignored: there is one page.")]


class CatalogConfig(Shown):
    """The configuration of a client of the catalog."""

    defaults: dict[str, str]
    overrides: dict[str, str]
    endpoints: list[str]


class GetCatalogConfig(ApiRequest[CatalogConfig]):
    """The configuration of a client of the Iceberg REST catalog."""

    endpoint = Endpoint("GET", f"{_V1}/config")
    warehouse: Annotated[str, Meta(description="Ignored: there is one warehouse.")] = ""


class Namespaces(Shown):
    """The namespaces of the catalog."""

    namespaces: list[list[str]]


class ListNamespaces(ApiRequest[Namespaces]):
    """The namespaces of the Iceberg REST catalog."""

    endpoint = Endpoint("GET", f"{_V1}/namespaces")
    parent: Annotated[str, Meta(description="A namespace; there is none within `pyrite`.")] = ""
    pageToken: Page = ""
    pageSize: Page = ""


class Namespace(Shown):
    """A namespace of the catalog."""

    namespace: list[str]
    properties: dict[str, str]


class GetNamespace(ApiRequest[Namespace]):
    """The namespace of the Iceberg REST catalog."""

    endpoint = Endpoint("GET", f"{_V1}/namespaces/{NAMESPACE}")


class TableName(Struct):
    """The name of a table."""

    namespace: list[str]
    name: str


class TableNames(Shown):
    """Names of tables."""

    identifiers: list[TableName]


class ListTables(ApiRequest[TableNames]):
    """The tables that the caller may load."""

    endpoint = Endpoint("GET", f"{_V1}/namespaces/{NAMESPACE}/tables")
    pageToken: Page = ""
    pageSize: Page = ""


class LoadedTable(Struct):
    """A table of the catalog."""

    metadata_location: Annotated[str, Meta(description="The file with the metadata.")] = field(
        name="metadata-location"
    )
    metadata: Annotated[dict[str, Any], Meta(description="Iceberg's table metadata.")]
    config: dict[str, str]


class LoadTable(ApiRequest[None]):
    """A table, as Iceberg's metadata."""

    endpoint = Endpoint("GET", f"{_V1}/namespaces/{NAMESPACE}/tables/{{name}}", (404,), answer=LoadedTable)
    name: Annotated[str, Meta(description="A stream with `table = true`.")]
    snapshots: Annotated[Literal["all", "refs"], Meta(description="The answer always has all snapshots.")] = (
        "all"
    )

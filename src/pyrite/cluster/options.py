"""The settings of a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
"""Names of clusters and nodes."""
EMBEDDED = "embedded"
"""The engine that runs beside the node."""
REPLICAS = (0, 1, 3, 5)
GIB = 1024 * 1024 * 1024


@dataclass(slots=True)
class ClusterOptions:
    """The [cluster] table of pyrite.toml."""

    name: str = ""
    """The name of the cluster: letters, digits, - and _. Empty for a broker without a cluster."""
    node: str = ""
    """The name of this node, which no other node of the cluster has, and which stays the same."""
    engine: str = EMBEDDED
    """The engine: embedded, for a nats-server that runs beside this node, or the URLs of a NATS cluster, as
    in nats://h1:4222,nats://h2:4222 (tls:// for TLS)."""
    routes: list[str] = field(default_factory=list)
    """host:port of the embedded engines of all nodes, including this one; empty for a single node."""
    listen: str = ""
    """host:port for the embedded engines of the other nodes; empty for the route with an address of this
    machine."""
    port: int = 0
    """The port on 127.0.0.1 for this node's connection to its embedded engine; 0 picks a free one."""
    secret: str = ""
    """The secret that the nodes of a cluster share; required if other machines can connect."""
    replicas: int = 0
    """Engines that keep every group: 1, 3 or 5; 0 for as many as there are routes, or 3."""
    keep_bytes: int = 8 * GIB
    """Bytes of groups that the engine keeps for nodes that were away."""
    keep_age: float = 86_400.0
    """Seconds for which the engine keeps groups."""
    ca: str = ""
    """PEM file with the authorities of the engines' certificates."""
    certificate: str = ""
    """PEM file with this node's certificate: for other engines, and for an external engine that requires
    one."""
    key: str = ""
    """PEM file with the private key of the certificate."""
    credentials: str = ""
    """The .creds file of an external engine's user."""
    monitor: list[str] = field(default_factory=list)
    """URLs of the monitoring endpoints of an external engine's servers, as in http://h1:8222. The node asks
    them whether they sync every write, and refuses to start if one does not."""
    engine_syncs: bool = False
    """States that an external engine syncs every write (sync_interval: always), if it has no monitoring
    endpoints to ask."""

    @property
    def in_use(self) -> bool:
        """True if this broker is a node of a cluster."""
        return bool(self.name)

    @property
    def is_embedded(self) -> bool:
        """True if the engine runs beside this node."""
        return self.engine == EMBEDDED

    @property
    def servers(self) -> list[str]:
        """The URLs of an external engine."""
        return [url.strip() for url in self.engine.split(",") if url.strip()]

    @property
    def copies(self) -> int:
        """The engines that keep every group."""
        if self.replicas:
            return self.replicas
        if not self.is_embedded:
            return 3
        return max(count for count in (1, 3, 5) if count <= max(1, len(self.routes)))

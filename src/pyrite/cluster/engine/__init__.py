"""The engine that orders and replicates groups: NATS JetStream, on servers of its own or embedded."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

from pyrite.cluster.engine.connection import CONNECT_TIMEOUT, Work
from pyrite.cluster.engine.embedded import EmbeddedServer, EngineFailed
from pyrite.cluster.engine.jetstream import JetStreamLog
from pyrite.cluster.engine.syncing import check_syncing
from pyrite.cluster.options import ClusterOptions

__all__ = ["Engine", "EngineFailed", "open_engine"]


class Engine(JetStreamLog):
    """An ordered log, and the embedded server if there is one."""

    server: EmbeddedServer | None = None

    async def close(self) -> None:
        await super().close()
        if self.server is not None:
            await self.server.stop()


async def open_engine(options: ClusterOptions, data: Path, applied: int, work: Work) -> Engine:
    """Start or connect to the engine; raise EngineFailed if it cannot be used.

    `applied` is the last sequence that this node has applied. `work` makes all calls back. There may be no
    quorum yet.
    """
    if options.is_embedded:
        server = EmbeddedServer(options, data)
        await server.start()
        engine = Engine(
            [server.url], {"name": options.node}, options, applied, max(1, len(options.routes)), work
        )
        engine.server = server
        return engine
    await check_syncing(options)
    engine = Engine(options.servers, _settings(options), options, applied, 1, work)
    for _ in range(int(CONNECT_TIMEOUT / 0.05)):
        if engine.status.connected:
            return engine
        await asyncio.sleep(0.05)
    trouble = engine.status.trouble
    await engine.close()
    raise EngineFailed(
        f"cannot connect to the engine at {', '.join(_shown(options))}: {trouble or 'no answer'}"
    )


def _settings(options: ClusterOptions) -> dict[str, Any]:
    settings: dict[str, Any] = {"name": options.node}
    if options.credentials:
        settings["user_credentials"] = options.credentials
    if options.ca or options.certificate:
        context = ssl.create_default_context(cafile=options.ca or None)
        if options.certificate:
            context.load_cert_chain(options.certificate, options.key or None)
        settings["tls"] = context
    return settings


def _shown(options: ClusterOptions) -> list[str]:
    """Return the engine's URLs without credentials."""
    return [url.rpartition("@")[2].rpartition("//")[2] for url in options.servers]

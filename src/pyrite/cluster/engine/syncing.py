"""Asks the servers of an external engine whether they sync every write.

No client can see it, so the servers' monitoring endpoints are asked.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

from pyrite.cluster.engine.embedded import EngineFailed
from pyrite.cluster.options import ClusterOptions

TIMEOUT = 5.0
_REMEDY = (
    "A node must not acknowledge what a power failure can take away. Set sync_interval: always in "
    "the jetstream block of every nats-server"
)


async def check_syncing(options: ClusterOptions) -> None:
    """Raise EngineFailed unless every server syncs every write."""
    if options.engine_syncs:
        return
    if not options.monitor:
        raise EngineFailed(
            "cluster.monitor: expected the monitoring URLs of all servers of the engine, as in "
            '["http://h1:8222"], to see that they sync every write. Without such endpoints, state with '
            "cluster.engine_syncs = true that all have sync_interval: always"
        )
    for url in options.monitor:
        values = await asyncio.to_thread(_read, url)
        stream_settings = values.get("jetstream", {}).get("config")
        if not stream_settings:
            raise EngineFailed(
                f"the engine at {url} has no JetStream: add a jetstream block to its configuration"
            )
        if stream_settings.get("sync_always") is not True:
            raise EngineFailed(f"the engine at {url} does not sync every write. {_REMEDY}")


def _read(url: str) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise EngineFailed(f"cluster.monitor = {url!r}: expected http://host:port")
    try:
        with urllib.request.urlopen(url.rstrip("/") + "/varz", timeout=TIMEOUT) as answer:  # noqa: S310
            values = json.load(answer)
    except (OSError, ValueError) as error:
        raise EngineFailed(f"cannot ask the engine at {url} whether it syncs every write: {error}") from None
    return values if isinstance(values, dict) else {}

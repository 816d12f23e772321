"""Which nodes are there: heartbeats of the nodes that have a quorum.

Heartbeats are plain messages. A lease in a replicated key-value store would say no more: a node sends
heartbeats only while the engine confirms to it that a quorum is there, and what follows from a missing
heartbeat is decided by a group in the one order, not by the heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from time import monotonic

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from pyrite.cluster.engine.connection import Work, end

logger = logging.getLogger(__name__)

INTERVAL = 0.5
"""Seconds between two heartbeats."""
LEASE_TIME = 8.0
"""Seconds without a heartbeat after which a node is gone. A node that is cut off itself must notice sooner:
within CONTACT_TIME and QUORUM_TIME together (jetstream.py)."""


class Presence:
    """The leases of all nodes, by key. Nothing expires while this node itself has no quorum."""

    def __init__(self, subject: str, has_quorum: Callable[[], bool], work: Work) -> None:
        self._work = work
        self._subject = subject
        self._has_quorum = has_quorum
        self._client: Client | None = None
        self._own: dict[str, bytes] = {}
        self._values: dict[str, bytes] = {}
        self._heard: dict[str, float] = {}
        self._watchers: list[Callable[[], object]] = []
        self._had_quorum = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def leases(self) -> Mapping[str, bytes]:
        """All leases that have not expired, by key."""
        return self._values

    def hold(self, key: str, value: bytes) -> None:
        """Keep a lease alive until the process ends."""
        self._own[key] = value

    def watch(self, call: Callable[[], object]) -> None:
        """Call whenever a lease appears, changes or ends."""
        self._watchers.append(call)

    async def connected(self, client: Client) -> None:
        """Hear heartbeats over a new connection."""
        await client.subscribe(self._subject + ".*", cb=self._hear)
        self._client = client

    def lost(self) -> None:
        """Send nothing until there is a new connection."""
        self._client = None

    async def close(self) -> None:
        """Release the leases, and stop."""
        await end(self._task)
        if self._client is not None:
            try:
                for key in self._own:
                    await self._client.publish(f"{self._subject}.{key}", b"")
                await self._client.flush(1)
            except (nats.errors.Error, OSError, TimeoutError):
                pass

    async def _run(self) -> None:
        while True:
            try:
                await self._beat()
            except (nats.errors.Error, OSError) as error:
                logger.debug("cannot send a heartbeat: %s", error)
            except Exception:
                logger.exception("internal error")
            await asyncio.sleep(INTERVAL)

    async def _beat(self) -> None:
        now = monotonic()
        has_quorum, had_quorum = self._has_quorum(), self._had_quorum
        self._had_quorum = has_quorum
        if not has_quorum:
            return
        if not had_quorum:  # while this node was cut off, it could not hear the others
            self._heard = dict.fromkeys(self._heard, now)
        if self._client is not None:
            for key, value in self._own.items():
                await self._client.publish(f"{self._subject}.{key}", b"+" + value)
        expired = [key for key, heard in self._heard.items() if now - heard > LEASE_TIME]
        for key in expired:
            self._forget(key)
        if expired:
            self._tell()

    async def _hear(self, message: Msg) -> None:
        key = message.subject.rpartition(".")[2]
        if not message.data:
            if key in self._values:
                self._forget(key)
                self._tell()
            return
        value = message.data[1:]
        self._heard[key] = monotonic()
        if self._values.get(key) != value:
            self._values[key] = value
            self._tell()

    def _forget(self, key: str) -> None:
        del self._values[key], self._heard[key]

    def _tell(self) -> None:
        for call in self._watchers:
            self._work(call)

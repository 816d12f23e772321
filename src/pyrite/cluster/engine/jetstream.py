"""The one order of groups, kept by NATS JetStream: a stream with one subject."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, NamedTuple

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from pyrite.cluster.engine.appends import Appends
from pyrite.cluster.engine.connection import Connection, EngineError, Work, end
from pyrite.cluster.engine.follower import Follower
from pyrite.cluster.engine.presence import Presence
from pyrite.cluster.options import ClusterOptions
from pyrite.cluster.order import Appended, OrderedLog, Position

logger = logging.getLogger(__name__)

CHECK_INTERVAL = 1.0
"""Seconds between two questions to the engine whether there is a quorum."""
QUORUM_TIME = 3.0
"""Seconds for which a confirmation proves that there is a quorum."""
CONTACT_TIME = 3.0
"""Seconds within which the leader must have heard from a majority; followers wait longer for a new leader."""
DUPLICATE_WINDOW = 120.0
"""Seconds for which the engine drops repeated appends."""
OVERHEAD = 4096
"""Bytes of a message that are not the group's."""
NOT_FOUND = 10059
"""JetStream's error for a stream that does not exist."""
NANO = 1_000_000_000


class EngineStatus(NamedTuple):
    """What is known of the engine, for people."""

    connected: bool
    server: str
    """The name of the server that this node is connected to."""
    leader: str
    replicas: Mapping[str, str]
    """The servers that keep the groups: "current", "lags by N" or "not heard for N s"."""
    first: int
    last: int
    bytes: int
    trouble: str
    """What keeps this node from the engine; empty if nothing does."""


class JetStreamLog(OrderedLog):
    """An order of groups in a JetStream stream.

    `applied` is the last sequence that this node has applied. A stream that does not exist begins after the
    highest of all `nodes`, so that nodes with data keep it if the engine is replaced.
    """

    def __init__(
        self,
        servers: list[str],
        settings: Mapping[str, Any],
        options: ClusterOptions,
        applied: int,
        nodes: int,
        work: Work,
    ) -> None:
        self._work = work
        self._options = options
        self._applied = applied
        self._nodes = nodes
        self._stream = f"PYRITE_{options.name}"
        self._subject = f"pyrite.{options.name}"
        self._confirmed_at = -QUORUM_TIME
        self._exists = False
        self._formed: dict[str, int] = {}
        """What each node has applied, until the stream exists."""
        self._info: dict[str, Any] = {}
        self._trouble = ""
        self._closing = False
        self._connection = Connection(servers, settings, self._connected, self._lost)
        self._appends = Appends(self._subject + ".groups", work, self._confirm)
        self._presence = Presence(self._subject + ".nodes", lambda: self.has_quorum, work)
        self._follower: Follower | None = None
        self._following: tuple[int, Callable[[int, bytes], object], Callable[[int], object]] | None = None
        self._task = asyncio.get_running_loop().create_task(self._watch())
        self._connection.open()

    # The interface of an ordered log

    @property
    def max_size(self) -> int:
        """Bytes of the largest group."""
        return self._connection.max_payload - OVERHEAD

    def append(self, data: bytes, identity: str, done: Callable[[Appended], object]) -> None:
        self._appends.append(data, identity, done)

    def follow(
        self,
        after: int,
        deliver: Callable[[int, bytes], object],
        lost: Callable[[int], object],
    ) -> None:
        self._following = (after, deliver, lost)
        self._begin_to_follow()

    def pause(self) -> None:
        if self._follower is not None:
            self._follower.pause()

    def resume(self) -> None:
        if self._follower is not None:
            self._follower.resume()

    def position(self, answer: Callable[[Position | None], object]) -> None:
        asyncio.get_running_loop().create_task(self._answer(answer))

    @property
    def has_quorum(self) -> bool:
        return monotonic() - self._confirmed_at < QUORUM_TIME

    def hold_lease(self, key: str, value: bytes) -> None:
        self._presence.hold(key, value)

    @property
    def leases(self) -> Mapping[str, bytes]:
        return self._presence.leases

    def when_leases_change(self, call: Callable[[], object]) -> None:
        self._presence.watch(call)

    async def close(self) -> None:
        self._closing = True
        await end(self._task)
        if self._follower is not None:
            await self._follower.close()
        await self._presence.close()
        await self._appends.close()
        await self._connection.close()

    # What else there is to know

    @property
    def status(self) -> EngineStatus:
        """What is known of the engine."""
        cluster = self._info.get("cluster") or {}
        state = self._info.get("state") or {}
        replicas = {one["name"]: _described(one) for one in cluster.get("replicas") or ()}
        client = self._connection.client
        info = {} if client is None else client._server_info
        return EngineStatus(
            client is not None,
            info.get("server_name", ""),
            cluster.get("leader", ""),
            replicas,
            state.get("first_seq", 0),
            state.get("last_seq", 0),
            state.get("bytes", 0),
            self._trouble or self._connection.trouble,
        )

    @property
    def unconfirmed(self) -> int:
        """Groups of this node that the engine has not confirmed."""
        return self._appends.unconfirmed

    # The connection

    async def _connected(self, client: Client) -> None:
        await client.subscribe(self._subject + ".forming.*", cb=self._hear_forming)
        await self._presence.connected(client)
        await self._appends.connected(client)
        if self._follower is not None:
            self._follower.connection_changed()

    def _lost(self) -> None:
        self._presence.lost()
        self._appends.lost()
        if self._follower is not None:
            self._follower.connection_changed()

    def _confirm(self) -> None:
        self._confirmed_at = monotonic()

    # The stream

    async def _watch(self) -> None:
        while True:
            try:
                if self._exists:
                    await self._ask()
                elif self._connection.client is not None:
                    await self._form()
                self._trouble = ""
            except (EngineError, nats.errors.Error, OSError) as error:
                if str(error) != self._trouble:
                    logger.warning("the engine has no quorum: %s", error)
                self._trouble = str(error)
            except Exception:
                logger.exception("internal error")
            await asyncio.sleep(CHECK_INTERVAL if self._exists else CHECK_INTERVAL / 4)

    async def _form(self) -> None:
        """Open the stream, or create it; until all nodes were heard, say what this one has applied."""
        try:
            info = await self._connection.request(f"$JS.API.STREAM.INFO.{self._stream}")
        except EngineError as error:
            client = self._connection.client
            if client is not None:
                mine = str(self._applied).encode()
                await client.publish(f"{self._subject}.forming.{self._options.node}", mine)
            if error.detail != NOT_FOUND:
                raise
            self._formed[self._options.node] = self._applied
            if len(self._formed) < self._nodes:
                heard = ", ".join(sorted(self._formed))
                raise EngineError(
                    503, f"waiting for all {self._nodes} nodes, to form the cluster; heard: {heard}"
                ) from None
            first = max(self._formed.values()) + 1
            logger.info("creating the engine's stream %s from sequence %d", self._stream, first)
            info = await self._connection.request(
                f"$JS.API.STREAM.CREATE.{self._stream}", {**self._config(), "first_seq": first}
            )
        if self._nodes == 1 and self._options.is_embedded and info["state"]["last_seq"] < self._applied:
            # Left from an earlier time: since then this node had another engine.
            await self._connection.request(f"$JS.API.STREAM.DELETE.{self._stream}")
            return
        await self._update(info)
        self._exists = True
        self._begin_to_follow()

    async def _hear_forming(self, message: Msg) -> None:
        if message.data.isdigit():
            self._formed[message.subject.rpartition(".")[2]] = int(message.data)

    def _config(self) -> dict[str, Any]:
        return {
            "name": self._stream,
            "subjects": [self._subject + ".groups"],
            "storage": "file",
            "num_replicas": self._options.copies,
            "retention": "limits",
            "discard": "old",
            "max_bytes": self._options.keep_bytes,
            "max_age": int(self._options.keep_age * NANO),
            "duplicate_window": int(min(DUPLICATE_WINDOW, self._options.keep_age) * NANO),
            "deny_delete": True,
            "deny_purge": True,
        }

    async def _update(self, info: dict[str, Any]) -> None:
        """Have the stream kept as the settings say, if it is not."""
        config = info["config"]
        wanted = self._config()
        if all(config.get(key) == value for key, value in wanted.items()):
            return
        logger.info("changing the engine's stream to %d replicas", self._options.copies)
        await self._connection.request(f"$JS.API.STREAM.UPDATE.{self._stream}", {**config, **wanted})

    async def _ask(self) -> Position:
        """Return what a quorum holds; raise EngineError if there is none."""
        info = self._info = await self._connection.request(f"$JS.API.STREAM.INFO.{self._stream}")
        cluster = info.get("cluster") or {}
        # While an engine joins again, it may be listed twice.
        heard = {cluster.get("leader", "")} | {
            one["name"]
            for one in cluster.get("replicas") or ()
            if not one.get("offline") and one.get("active", 0) < CONTACT_TIME * NANO
        }
        replicas = info["config"]["num_replicas"]
        if 2 * len(heard) <= replicas:
            raise EngineError(503, f"the leader has contact with {len(heard)} of {replicas} engines")
        self._confirm()
        state = info["state"]
        if self._follower is not None:
            self._follower.expect(state["last_seq"])
        return Position(state["first_seq"], state["last_seq"])

    async def _answer(self, answer: Callable[[Position | None], object]) -> None:
        try:
            found = await self._ask() if self._exists else None
        except EngineError:
            found = None
        self._work(lambda: answer(found))

    def _begin_to_follow(self) -> None:
        if self._following is None or not self._exists or self._closing:
            return
        following, self._following = self._following, None
        if self._follower is not None:
            asyncio.get_running_loop().create_task(self._follower.close())
        self._follower = Follower(self._connection, self._stream, self._ask, *following, self._work)


def _described(replica: Mapping[str, Any]) -> str:
    silent = replica.get("active", 0) / NANO
    if replica.get("offline") or silent > CONTACT_TIME:
        return f"not heard for {silent:.0f} s"
    lag = replica.get("lag", 0)
    return f"lags by {lag}" if lag else "current"

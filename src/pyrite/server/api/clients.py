"""Requests about connected clients and their subscriptions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from pyrite.broker.access import Credentials
from pyrite.broker.core import Broker
from pyrite.broker.session import Session
from pyrite.ipc.api.clients import (
    ClientDetails,
    ClientInfo,
    ClientPage,
    ClientSubscription,
    DisconnectClient,
    GetClient,
    ListClients,
)
from pyrite.ipc.problem import Problem
from pyrite.ipc.server import Call
from pyrite.protocols.conversation import Conversation
from pyrite.protocols.line.datagram_connection import DatagramConnection
from pyrite.protocols.mqtt.connection import Connection
from pyrite.protocols.mqtt.handshake import KEEP_ALIVE_GRACE, VERSIONS
from pyrite.protocols.mqtt.reasons import Reason
from pyrite.server.api.checks import check
from pyrite.server.api.pages import Entry, PageBuilder, PageTurns
from pyrite.server.gate import answers
from pyrite.server.sockets import SocketTransport
from pyrite.server.streams import StreamProtocol
from pyrite.server.traffic import traffic
from pyrite.server.websocket import WebSocketProtocol

MAX_SUBSCRIPTIONS = 1_000
"""Maximum subscriptions in an answer about one client."""


class ClientRequests:
    """Answers requests about clients."""

    def __init__(self, broker: Broker, turns: PageTurns) -> None:
        self._broker = broker
        self._turns = turns

    @answers(ListClients)
    def page(self, caller: Credentials, request: ListClients, call: Call[ClientPage]) -> None:
        """Return a page of clients, ordered by identifier."""
        check(self._broker.policy.refuse_admin(caller))
        sessions = self._broker.sessions.by_id

        def describe(client_id: str) -> Entry | None:
            session = sessions.get(client_id)
            if session is None or session.link is None:
                return None
            return ClientInfo(**self._fields(session)), 0

        page = PageBuilder(
            self._broker, call, self._following, request.after or None, request.limit, describe, ClientPage
        )
        self._turns.add(caller.asker, page.work)

    def _following(self, after: str | None) -> Iterator[str]:
        """Yield client identifiers in order, also of disconnected clients."""
        ids: Iterator[str] = self._broker.sessions.ids.irange(after, None, (False, True))
        return ids

    @answers(GetClient)
    def one(self, caller: Credentials, request: GetClient, call: Call[ClientDetails]) -> None:
        """Return one client and its first subscriptions."""
        session, _ = self._connected(caller, request.id)
        subscriptions = sorted(islice(session.subscriptions.items(), MAX_SUBSCRIPTIONS))
        fields = self._fields(session)

        def describe(number: int) -> Entry:
            key, one = subscriptions[number]
            return (
                ClientSubscription(
                    key.decode(), one.qos, one.no_local, one.retain_as_published, one.retain_handling
                ),
                0,
            )

        page: PageBuilder[int] = PageBuilder(
            self._broker,
            call,
            lambda number: iter(range(0 if number is None else number + 1, len(subscriptions))),
            None,
            MAX_SUBSCRIPTIONS,
            describe,
            lambda entries, _: ClientDetails(**fields, subscribed=entries),
        )
        self._turns.add(caller.asker, page.work)

    @answers(DisconnectClient)
    def disconnect(self, caller: Credentials, request: DisconnectClient, call: Call[None]) -> None:
        _, link = self._connected(caller, request.id)
        link.ended(Reason.ADMINISTRATIVE_ACTION)
        call.reply(None)

    def _connected(self, caller: Credentials, client_id: str) -> tuple[Session, Conversation]:
        check(self._broker.policy.refuse_admin(caller))
        session = self._broker.sessions.by_id.get(client_id)
        link = session.link if session is not None else None
        if session is None or not isinstance(link, Conversation):
            raise Problem(404, f"no client {client_id!r} is connected")
        return session, link

    def _fields(self, session: Session) -> dict[str, Any]:
        """Return the fields of ClientInfo."""
        link, now = session.link, self._broker.now
        assert isinstance(link, Conversation)
        since = None if link.came_at is None else int(time.time() - (now - link.came_at))
        received, sent = _traffic(link)
        queued = session.queue.messages + self._behind(session)
        return {
            "id": session.client_id,
            "user": link.credentials.username,
            "protocol": _protocol(link),
            "address": link.credentials.address,
            "connected_since": None if since is None else datetime.fromtimestamp(since, UTC),
            "keep_alive": link.keep_alive / KEEP_ALIVE_GRACE if isinstance(link, Connection) else None,
            "subscriptions": len(session.subscriptions),
            "queued": queued,
            "sent": sent,
            "received": received,
            "slow": queued > 0 or not link.is_roomy,
        }

    def _behind(self, session: Session) -> int:
        """Return the lag of a session: messages in the log after its cursor, on any topic."""
        positions = session.positions or {}
        return sum(max(0, stream.routed - offset) for stream, offset in positions.items())


def _protocol(link: Conversation) -> str:
    if isinstance(link, Connection):
        over = " over WebSocket" if isinstance(link.transport, WebSocketProtocol) else ""
        return VERSIONS[link.version] + over
    return "line over UDP" if isinstance(link, DatagramConnection) else "line"


def _traffic(link: Conversation) -> tuple[int | None, int | None]:
    """Return the bytes received from a client and sent to it, as counted by the kernel."""
    transport, descriptor = link.transport, -1
    if isinstance(transport, SocketTransport):
        descriptor = transport._descriptor
    elif isinstance(transport, StreamProtocol) and transport.transport is not None:
        endpoint = transport.transport.get_extra_info("socket")
        descriptor = -1 if endpoint is None else endpoint.fileno()
    return traffic(descriptor) or (None, None)

"""Questions about clients: who is connected, and what they have subscribed to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

from pyrite.broker.access import Credentials
from pyrite.broker.core import Broker
from pyrite.broker.session import Session
from pyrite.protocols.conversation import Conversation
from pyrite.protocols.line.datagram_connection import DatagramConnection
from pyrite.protocols.mqtt.connection import Connection
from pyrite.protocols.mqtt.handshake import KEEP_ALIVE_GRACE, VERSIONS
from pyrite.protocols.mqtt.reasons import Reason
from pyrite.server.questions.pages import Entry, Page, PageTurns
from pyrite.server.questions.problem import Message, Problem, Reply, refused
from pyrite.server.sockets import SocketTransport, traffic
from pyrite.server.streams import StreamProtocol
from pyrite.server.websocket import WebSocketProtocol

MAX_SUBSCRIPTIONS = 1_000
"""Subscriptions of one client that are told."""


class Clients:
    """Knows who is connected."""

    def __init__(self, broker: Broker, turns: PageTurns) -> None:
        self._broker = broker
        self._turns = turns

    def page(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Tell of some clients, in the order of their ids."""
        self._check(who)
        sessions = self._broker.sessions

        def describe(client_id: str) -> Entry | None:
            session = sessions.get(client_id)
            if session is None or session.link is None:
                return None
            return self._about(session), b""

        page = Page(
            self._broker,
            self._following,
            message["after"],
            message["limit"],
            describe,
            lambda last: reply({"next": last}),
            reply,
        )
        self._turns.add(who.asker, page.work)

    def _following(self, after: str | None) -> Iterator[str]:
        """Yield the clients after one, or all, in order; whether they are connected or not."""
        ids: Iterator[str] = self._broker.client_ids.irange(after, None, (False, True))
        return ids

    def one(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Tell of one client, and its subscriptions; of very many, those that it made first."""
        session, _ = self._connected(who, message)
        subscriptions = sorted(islice(session.subscriptions.items(), MAX_SUBSCRIPTIONS))

        def describe(number: int) -> Entry:
            key, one = subscriptions[number]
            entry = {
                "filter": key.decode(),
                "qos": one.qos,
                "no_local": one.no_local,
                "retain_as_published": one.retain_as_published,
                "retain_handling": one.retain_handling,
            }
            return entry, b""

        page = Page(
            self._broker,
            lambda number: iter(range(0 if number is None else number + 1, len(subscriptions))),
            None,
            MAX_SUBSCRIPTIONS,
            describe,
            lambda last: reply(self._about(session)),
            reply,
        )
        self._turns.add(who.asker, page.work)

    def disconnect(self, who: Credentials, message: Message, reply: Reply) -> None:
        """End a client's connection."""
        _, link = self._connected(who, message)
        link.ended(Reason.ADMINISTRATIVE_ACTION)
        reply(None)

    def _check(self, who: Credentials) -> None:
        access = self._broker.access
        if access.checks_topics and not access.may_admin(who, "#"):
            raise refused("admin", "#")

    def _connected(self, who: Credentials, message: Message) -> tuple[Session, Conversation]:
        self._check(who)
        session = self._broker.sessions.get(message["id"])
        link = session.link if session is not None else None
        if session is None or not isinstance(link, Conversation):
            raise Problem(404, f"no client {message['id']!r} is connected")
        return session, link

    def _about(self, session: Session) -> Message:
        link, now = session.link, self._broker.now
        assert isinstance(link, Conversation)
        since = None if link.came_at is None else time.time() - (now - link.came_at)
        received, sent = _traffic(link)
        queued = session.queued_messages + self._behind(session)
        return {
            "id": session.client_id,
            "user": link.credentials.username,
            "protocol": _protocol(link),
            "address": link.credentials.address,
            "connected_since": since,
            "keep_alive": link.keep_alive / KEEP_ALIVE_GRACE if isinstance(link, Connection) else None,
            "subscriptions": len(session.subscriptions),
            "queued": queued,
            "sent": sent,
            "received": received,
            "slow": queued > 0 or not link.is_roomy,
        }

    def _behind(self, session: Session) -> int:
        """Return how many messages of the log, of any topic, a session is behind."""
        positions = session.positions or {}
        return sum(max(0, stream.routed - offset) for stream, offset in positions.items())


def _protocol(link: Conversation) -> str:
    if isinstance(link, Connection):
        over = " over WebSocket" if isinstance(link.transport, WebSocketProtocol) else ""
        return VERSIONS[link.version] + over
    return "line over UDP" if isinstance(link, DatagramConnection) else "line"


def _traffic(link: Conversation) -> tuple[int | None, int | None]:
    """Return how many bytes came from a client, and went to it, as the kernel has counted them."""
    transport, descriptor = link.transport, -1
    if isinstance(transport, SocketTransport):
        descriptor = transport._descriptor
    elif isinstance(transport, StreamProtocol) and transport.transport is not None:
        endpoint = transport.transport.get_extra_info("socket")
        descriptor = -1 if endpoint is None else endpoint.fileno()
    return traffic(descriptor) or (None, None)

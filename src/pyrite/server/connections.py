"""The open stream connections of MQTT and line clients, counted by address."""

from __future__ import annotations

import sys
from collections.abc import Callable

from pyrite.broker.core import Broker
from pyrite.broker.link import Transport
from pyrite.protocols.conversation import Conversation
from pyrite.protocols.events import events
from pyrite.server.config import Config
from pyrite.server.listeners import Listener
from pyrite.server.traffic import traffic


class Connections:
    """Opens and counts connections."""

    def __init__(
        self,
        config: Config,
        broker: Broker,
        most: int,
        make: Callable[[Listener, Transport, str, str], Conversation],
        refused: Callable[[str], object],
    ) -> None:
        self._limits = config.limits
        self._broker = broker
        self._most = most
        self._make = make
        self._refused = refused
        """Called with the address of a connection beyond a limit."""
        self._per_address: dict[str, int] = {}
        self.all: set[Conversation] = set()

    def has_room(self, more: int = 0) -> bool:
        """Return True if one more connection is possible besides the open ones and `more` others."""
        return len(self.all) + more < self._most

    def admit(self, address: str) -> str | None:
        """Count a connection from an address; return the address, or None if a limit is exceeded."""
        per_address = self._limits.max_connections_per_address
        here = self._per_address.get(address, 0)
        if not self.has_room() or here >= per_address:
            self._broker.figures.connections_refused += 1
            where = " from this address" if here >= per_address else ""
            events.tell("refused", address=address, reason=f"too many connections{where}")
            self._refused(address)
            return None
        self._per_address[address] = here + 1
        self._broker.figures.connections_accepted += 1
        return sys.intern(address)

    def open(self, listener: Listener, transport: Transport, address: str, peer: str) -> Conversation:
        """Create the connection of a client, after `admit`."""
        connection = self._make(listener, transport, address, peer)
        self.all.add(connection)
        return connection

    def close(self, connection: Conversation, descriptor: int) -> None:
        """Remove a connection; `descriptor` is its socket, or -1 if that is already closed."""
        self.all.discard(connection)
        address = connection.credentials.address
        connection.tell_disconnected(traffic(descriptor) if connection.came_at is not None else None)
        here = self._per_address[address] - 1
        if here:
            self._per_address[address] = here
        else:
            del self._per_address[address]

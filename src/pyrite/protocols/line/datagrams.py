"""The clients of one UDP socket, identified by the addresses from which they send.

The source address of a datagram can be forged. A new address is a *stranger* until it has proved that it
receives datagrams (datagram_connection.py). The number of strangers is bounded, and they never displace
clients.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyrite.broker.timers import TURN
from pyrite.protocols.line.datagram_connection import DatagramConnection
from pyrite.protocols.line.options import LineOptions

if TYPE_CHECKING:
    from pyrite.broker.core import Broker

Address = tuple[str, int]
Send = Callable[[bytes, Address], object]

MAX_SENT_AT_ONCE = 64
"""Datagrams sent in 2 ms without waiting for a turn; each takes some 6 µs."""
MAX_UNSENT = 8_192
"""Datagrams that wait for a turn; further ones are lost."""
MAX_STRANGERS = 1_024
"""Strangers known at a time; a new stranger displaces the oldest."""
MAX_STRANGERS_PER_HOST = 64
"""Strangers of one host; a new stranger displaces the oldest of the same host."""


class Datagrams:
    """All clients of one UDP socket."""

    def __init__(self, broker: Broker, options: LineOptions, send: Send) -> None:
        self.broker = broker
        self.options = options
        self._send = send
        self._unsent: deque[tuple[bytes, Address]] = deque()
        """Datagrams that are sent in turns; the oldest first."""
        self._sent_at_once = 0
        self._since = float("-inf")
        """When the first of those was sent."""
        self._clients: dict[Address, DatagramConnection] = {}
        self._strangers: OrderedDict[Address, None] = OrderedDict()
        self._strangers_of: dict[str, OrderedDict[Address, None]] = {}
        self._per_address: dict[str, int] = {}
        """Clients of each host, without strangers."""

    def __len__(self) -> int:
        return len(self._clients)

    def received(self, data: bytes, address: Address) -> None:
        """Handle a datagram. Never raises."""
        client = self._clients.get(address)
        if client is None:
            of_host = self._strangers_of.get(address[0], ())
            if len(of_host) >= MAX_STRANGERS_PER_HOST:
                self._clients[next(iter(of_host))].forgotten()
            elif len(self._strangers) >= MAX_STRANGERS:
                self._clients[next(iter(self._strangers))].forgotten()
            client = self._clients[address] = DatagramConnection(self, address)
            self._strangers[address] = None
            self._strangers_of.setdefault(address[0], OrderedDict())[address] = None
        client.take(data)

    # Datagrams out: each takes a call of the system

    def put(self, data: bytes, address: Address) -> None:
        """Send a datagram, at once or in a later turn; it is lost if too many wait."""
        now = self.broker.clock()
        if now - self._since > TURN:
            self._since, self._sent_at_once = now, 0
        if not self._unsent and self._sent_at_once < MAX_SENT_AT_ONCE:
            self._sent_at_once += 1
            self._send(data, address)
            return
        if not self._unsent:
            self.broker.turns.add(self)
        if len(self._unsent) < MAX_UNSENT:
            self._unsent.append((data, address))

    def go_on(self) -> None:
        """Send datagrams for a turn."""
        until = self.broker.clock() + TURN
        while self._unsent:
            self._send(*self._unsent.popleft())
            if self._unsent and self.broker.clock() > until:
                self.broker.turns.add(self)
                return

    # Clients

    def admit(self, address: Address) -> str:
        """Turn a stranger into a client. Return why that is refused, or an empty text."""
        limits = self.broker.limits
        here = self._per_address.get(address[0], 0)
        if here >= limits.max_connections_per_address:
            return "too many connections from this address"
        if len(self._clients) - len(self._strangers) >= limits.max_connections:
            return "too many connections"
        self._per_address[address[0]] = here + 1
        self._remove_stranger(address)
        return ""

    def _remove_stranger(self, address: Address) -> None:
        del self._strangers[address]
        of_host = self._strangers_of[address[0]]
        del of_host[address]
        if not of_host:
            del self._strangers_of[address[0]]

    def connections(self) -> list[DatagramConnection]:
        """Return all clients and strangers."""
        return list(self._clients.values())

    def forget(self, address: Address) -> None:
        """Drop the record of a client or stranger."""
        client = self._clients.pop(address, None)
        if client is None:
            return
        client.tell_disconnected(None)
        if address in self._strangers:
            self._remove_stranger(address)
            return
        self._per_address[address[0]] -= 1
        if not self._per_address[address[0]]:
            del self._per_address[address[0]]

    def ended(self, reason: int) -> None:
        """Tell all clients that the broker is stopping."""
        for client in list(self._clients.values()):
            client.ended(reason)
        while self._unsent:
            self._send(*self._unsent.popleft())

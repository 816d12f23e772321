"""Output: each connection's messages of one round of the event loop leave in one write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrite.broker.timers import TURN

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.broker.link import Link


class Output:
    """The connections that have something to send."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.links: list[Link] = []

    def add(self, link: Link) -> None:
        """Add a connection that has something to send. HOT."""
        if not self.links:
            self._broker.wake()
        self.links.append(link)

    def flush(self) -> None:
        """Send for a turn; connections that are left are sent to by the next call."""
        self._broker.journal.kick()
        links = self.links
        self.links = []
        if len(links) == 1:
            links[0].flush()
        else:
            self._flush_many(links)

    def _flush_many(self, links: list[Link]) -> None:
        clock = self._broker.clock
        until = clock() + TURN
        for number, link in enumerate(links, 1):
            link.flush()
            if clock() > until:
                self.links = links[number:] + self.links
                return

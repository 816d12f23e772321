"""A queue that takes turns: over users, and over the clients of each user."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Asker(NamedTuple):
    """For whom something is done: a user, or the address of a client without a name; and the client."""

    user: str = ""
    client: str = ""


NO_ONE = Asker()
"""For whom the broker's own work is done."""


class FairQueue(Generic[T]):
    """Items in the order in which they are to be handled: however many one user queues, others wait for one.

    Not safe for threads: its owner has the lock.
    """

    def __init__(self) -> None:
        self._users: OrderedDict[str, OrderedDict[str, deque[T]]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, asker: Asker, item: T) -> None:
        """Add an item to those of a client."""
        clients = self._users.get(asker.user)
        if clients is None:
            clients = self._users[asker.user] = OrderedDict()
        items = clients.get(asker.client)
        if items is None:
            items = clients[asker.client] = deque()
        items.append(item)
        self._length += 1

    def get(self) -> T:
        """Take the next item: the first of the client whose turn it is, of the user whose turn it is."""
        user, clients = self._users.popitem(last=False)
        client, items = clients.popitem(last=False)
        item = items.popleft()
        if items:
            clients[client] = items
        if clients:
            self._users[user] = clients
        self._length -= 1
        return item

    def clear(self) -> None:
        """Discard all items."""
        self._users.clear()
        self._length = 0

"""A queue that is fair to users, and to the clients of each user."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Asker(NamedTuple):
    """The origin of a work item: a user (or the address of a client without one), and a client."""

    user: str = ""
    client: str = ""


NO_ONE = Asker()
"""The origin of the broker's own work."""


class FairQueue(Generic[T]):
    """Items, returned round-robin over users and their clients: a user waits for one item of each other user.

    Not thread-safe; the caller holds a lock.
    """

    def __init__(self) -> None:
        self._users: OrderedDict[str, OrderedDict[str, deque[T]]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, asker: Asker, item: T) -> None:
        """Add an item of a client."""
        clients = self._users.get(asker.user)
        if clients is None:
            clients = self._users[asker.user] = OrderedDict()
        items = clients.get(asker.client)
        if items is None:
            items = clients[asker.client] = deque()
        items.append(item)
        self._length += 1

    def get(self) -> T:
        """Remove and return the next item."""
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
        self._users.clear()
        self._length = 0

"""Routes: the receivers of a topic's messages, and the cache of those that were found."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from pyrite.topics.tree import TopicTree

if TYPE_CHECKING:
    from pyrite.broker.journal import Stream
    from pyrite.broker.session import Session
    from pyrite.broker.shared_group import SharedGroup
    from pyrite.broker.subscriptions import Subscription

MAX_CHEAP_RECEIVERS = 8
"""Receivers above which delivering a message takes much longer than publishing it."""
MAX_PROMPT_RECEIVERS = 16
"""Receivers above which a delivery may take too long to be made at once."""
GROUP_DELIVERIES = 32
"""Deliveries that a shared subscription counts as: each message of a batch may go to a different member."""
IDENTIFIERS_PER_DELIVERY = 32
"""Subscription identifiers sent with a message that take as long as a delivery."""
MAX_CACHED_ROUTES = 100_000
MAX_CACHED_RECEIVERS = 1_000_000
"""Subscriptions and groups of all cached routes together: a route takes some 40 bytes for each."""
MAX_COVERED_ROUTES = 16_384
"""Cached routes from which a topic is not cached if the route of its prefix is known."""
MAX_PREFIXES = 4_096
MAX_PREFIX_RECEIVERS = 256
"""Subscriptions and groups of a route that is kept for a prefix."""
MAX_PREFIX_LEVELS = 3
MIN_CACHED_ROUTES = 64
"""Routes that are not forgotten to save memory."""
ROUTES_EVICTED = 1_024
"""Routes that are forgotten at a time, the oldest: finding the first of a dictionary takes time."""
MAX_FORGETTING_STEPS = 512
"""Steps to find the routes that a changed subscription affects; beyond it, all are forgotten."""
MAX_CACHED_SIZE = 256
MAX_CACHED_LEVELS = 16


RouteKey: TypeAlias = "tuple[Subscription | SharedGroup | Stream | None, ...]"
"""The matching subscriptions and groups of a topic, and its stream: topics with equal keys share a route."""


class Route:
    """The receivers of a topic's messages, and its stream. Topics with the same of both share a route."""

    __slots__ = (
        "_as_of",
        "_places",
        "_present",
        "cost",
        "groups",
        "has_no_local",
        "identifiers",
        "is_costly",
        "is_wide",
        "key",
        "receivers",
        "stream",
        "targets",
        "topics",
    )

    def __init__(
        self,
        targets: tuple[Subscription, ...],
        groups: tuple[SharedGroup, ...],
        stream: Stream | None,
        key: RouteKey = (),
        identifiers: int = 0,
    ) -> None:
        self.key = key
        self.topics = 0
        """Cached topics that have this route."""
        self.targets = targets
        self.groups = groups
        self.stream = stream
        """The stream that captures these topics, if one does."""
        self.receivers = len(targets) + len(groups)
        self.is_costly = self.receivers > MAX_CHEAP_RECEIVERS
        self.is_wide = self.receivers > MAX_PROMPT_RECEIVERS
        self.has_no_local = any(map(attrgetter("no_local"), targets))
        """Whether delivering a message depends on its publisher."""
        self.identifiers = identifiers
        self.cost = (
            1 + len(targets) + GROUP_DELIVERIES * len(groups) + identifiers // IDENTIFIERS_PER_DELIVERY
        )
        """The deliveries that a message counts as."""
        self._present = targets
        self._as_of = -1
        self._places: dict[Session | SharedGroup, int] | None = None

    def present(self, as_of: int) -> tuple[Subscription, ...] | None:
        """Return the targets that will not read a message from the log, if they are known.

        They have to be found again when `as_of` changes, as it does when clients connect or disconnect.
        """
        return self._present if self._as_of == as_of else None

    def set_present(self, as_of: int, targets: list[Subscription]) -> None:
        """Note the targets that `present` returns."""
        self._as_of = as_of
        self._present = tuple(targets)

    @property
    def places(self) -> dict[Session | SharedGroup, int]:
        """The index of each session in `targets`, and of each group in `groups`."""
        if self._places is None:
            self._places = {one.session: place for place, one in enumerate(self.targets)}
            self._places.update({one: place for place, one in enumerate(self.groups)})
        return self._places


class RouteCache:
    """Routes by topic, until a subscription that may match the topic changes."""

    __slots__ = ("_receivers", "_tree", "forgotten", "prefixes", "routes", "shared")

    def __init__(self) -> None:
        self._tree: TopicTree[Route] = TopicTree()
        self.prefixes: dict[tuple[int, bytes], Route | None] = {}
        """The route of all topics with so many slashes below a prefix; None if they have several."""
        self.routes = self._tree.values
        """The cached routes, for look-ups on the hot path."""
        self.shared: dict[RouteKey, Route] = {}
        """The routes that topics share, as long as a topic is cached."""
        self._receivers = 0
        """Subscriptions and groups in the keys of these routes."""
        self.forgotten: list[Iterator[None]] = []
        """Steps that free a cache that was forgotten as a whole, for the broker to do in turns."""

    def add(self, topic: bytes, route: Route) -> None:
        """Cache the route of a topic, unless the topic is very long."""
        if len(topic) <= MAX_CACHED_SIZE and topic.count(b"/") < MAX_CACHED_LEVELS:
            if len(self.routes) >= MAX_CACHED_ROUTES:
                self.forget_oldest()
            self._tree[topic] = route
            route.topics += 1
            if route.key and route.topics == 1:
                self.shared[route.key] = route
                self._receivers += len(route.key)
                while self._receivers > MAX_CACHED_RECEIVERS and len(self.routes) > 1:
                    self.forget_oldest(but=len(self.routes) // 2)

    def prefix_of(self, topic: bytes) -> bytes | None:
        """Return the prefix below which all topics with as many levels have one route, if known."""
        at, slashes, prefixes = 0, topic.count(b"/"), self.prefixes
        for _ in range(min(slashes, MAX_PREFIX_LEVELS)):
            at = topic.find(b"/", at) + 1
            key = (slashes, topic[:at])
            if key not in prefixes:
                return None
            if prefixes[key] is not None:
                return key[1]
        return None

    def below(self, topic: bytes) -> Route | None:
        """Return the route that all topics below a prefix of a topic have, if one is known."""
        prefix = self.prefix_of(topic)
        return None if prefix is None else self.prefixes[topic.count(b"/"), prefix]

    def add_prefix(self, slashes: int, prefix: bytes, route: Route | None) -> None:
        """Remember that all topics with so many slashes below a prefix have a route, or have several."""
        if route is not None and len(route.key) > MAX_PREFIX_RECEIVERS:
            return
        if len(self.prefixes) >= MAX_PREFIXES:
            self.prefixes = {}
        self.prefixes[slashes, prefix] = route

    def _forget(self, topic: bytes) -> None:
        route = self._tree.pop(topic)
        if route is not None:
            route.topics -= 1
            if not route.topics and self.shared.get(route.key) is route:
                del self.shared[route.key]
                self._receivers -= len(route.key)

    def forget_oldest(self, but: int = MIN_CACHED_ROUTES) -> int:
        """Make room for other routes, or free memory, but keep some routes; return how many were forgotten.

        To find its first entry, a dictionary skips all removed entries before it: so routes are not forgotten
        one at a time.
        """
        oldest = list(islice(self.routes, max(0, min(ROUTES_EVICTED, len(self.routes) - but))))
        for topic in oldest:
            self._forget(topic)
        return len(oldest)

    def forget_matching(self, topic_filter: bytes) -> None:
        """Forget the routes of topics that match a filter, as a subscription to it has changed."""
        self.prefixes = {}
        found = list(islice(self._tree.steps(topic_filter), MAX_FORGETTING_STEPS + 1))
        if len(found) > MAX_FORGETTING_STEPS:
            self.forgotten += self._tree.take_apart(), _emptying(self.shared)
            self._tree = TopicTree()
            self.routes = self._tree.values
            self.shared = {}
            self._receivers = 0
            return
        for topic in found:
            if topic is not None:
                self._forget(topic)


def _emptying(routes: dict[RouteKey, Route]) -> Iterator[None]:
    while routes:
        routes.popitem()
        yield

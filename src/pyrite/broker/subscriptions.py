"""Subscriptions, and the tree that finds those that match a topic.

The tree is walked once for each topic. The route that it finds is cached until a matching subscription
changes, so routing costs one dictionary look-up, however many filters there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from pyrite.broker.routes import (
    MAX_CACHED_SIZE,
    MAX_COVERED_ROUTES,
    MAX_PREFIX_LEVELS,
    Route,
    RouteCache,
)
from pyrite.broker.shared_group import SharedGroup
from pyrite.topics.filters import levels_match

if TYPE_CHECKING:
    from pyrite.broker.followers import Replay
    from pyrite.broker.journal import Stream
    from pyrite.broker.message import Batch
    from pyrite.broker.session import Session


WILDCARDS = frozenset((b"+", b"#"))


class Subscription:
    """A session's subscription to a filter; in a route, all those that match the topic, merged into one."""

    __slots__ = (
        "group",
        "identifiers",
        "is_answer",
        "keeps_cursor",
        "latest",
        "lossless",
        "no_local",
        "own",
        "qos",
        "replay",
        "retain_as_published",
        "retain_handling",
        "session",
        "since",
        "topic_filter",
    )

    def __init__(
        self,
        session: Session,
        topic_filter: bytes,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifiers: tuple[int, ...] = (),
        group: SharedGroup | None = None,
    ) -> None:
        self.session = session
        self.topic_filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.own: Subscription | None = None
        """The part that the session's own messages match, if this is merged and `no_local`."""
        self.retain_as_published = retain_as_published
        self.retain_handling = retain_handling
        self.identifiers = identifiers
        self.group = group
        self.since: dict[Stream, int] | None = None
        """The offsets from which it gets messages; None for every message."""
        self.is_answer = False
        """Whether it is the target of the answer to a request, which only the user who asked may see."""
        self.lossless = False
        """Whether QoS 0 messages without room are sent later, from the log."""
        self.latest = False
        """Whether the client gets only the newest message of each topic that it has not acknowledged."""
        self.replay: Replay | None = None
        """Its replay. Until that has caught up, the subscription is not in the tree."""
        self.keeps_cursor = False
        """Whether its messages do not move the session's cursor in the log."""

    def wants(self, batch: Batch) -> bool:
        """Return whether a batch from the log is newer than this subscription."""
        since, stream = self.since, batch.stream
        return since is None or stream is None or batch.offset >= since.get(stream, 0)


_QOS, _IDENTIFIERS = attrgetter("qos"), attrgetter("identifiers")
_NO_LOCAL, _AS_PUBLISHED = attrgetter("no_local"), attrgetter("retain_as_published")
_LOSSLESS, _LATEST = attrgetter("lossless"), attrgetter("latest")


def combine(overlapping: list[Subscription]) -> Subscription:
    """Combine overlapping subscriptions of one session: one copy, the highest QoS [MQTT-3.3.4-2]."""
    first = overlapping[0]
    if len(overlapping) == 1:
        return first
    merged = Subscription(
        first.session,
        first.topic_filter,
        max(map(_QOS, overlapping)),
        any(map(_NO_LOCAL, overlapping)),
        any(map(_AS_PUBLISHED, overlapping)),
        0,
        tuple(chain.from_iterable(map(_IDENTIFIERS, overlapping))),  # [MQTT-3.3.4-3]
    )
    if merged.no_local:
        own = [one for one in overlapping if not one.no_local]
        merged.own = combine(own) if own else None
    merged.lossless = any(map(_LOSSLESS, overlapping))
    merged.latest = any(map(_LATEST, overlapping))
    return merged


def _one_per_session(subscriptions: list[Subscription]) -> tuple[Subscription, ...]:
    """Combine the subscriptions of each session."""
    if len({one.session for one in subscriptions}) == len(subscriptions):
        return tuple(subscriptions)
    by_session: dict[Session, list[Subscription]] = defaultdict(list)
    for one in subscriptions:
        by_session[one.session].append(one)
    return tuple(map(combine, by_session.values()))


def _no_stream(topic: bytes) -> Stream | None:
    return None


class _Node:
    """One level of the tree of filters. Its parts are created when needed: most nodes have one of them.

    Levels that only one filter has are not nodes, but the `rest` of the last node. So the memory of a filter
    depends on its length, not on the number of its levels.
    """

    __slots__ = ("children", "groups", "rest", "subscriptions")

    def __init__(self, rest: bytes | None = None) -> None:
        self.children: dict[bytes, _Node] | None = None
        self.subscriptions: dict[Session, Subscription] | None = None
        self.groups: dict[str, SharedGroup] | None = None
        self.rest = rest
        """The remaining levels of the only filter below; there are no children then."""

    @property
    def is_wild(self) -> bool:
        """Whether all filters below this level consist of wildcards."""
        if self.rest is not None:
            return not {*self.rest.split(b"/")} - WILDCARDS
        children = self.children or {}
        if len(children) > len(WILDCARDS):
            return False
        return all(level in WILDCARDS and child.is_wild for level, child in children.items())

    def below(self, level: bytes) -> list[_Node]:
        """Return the nodes of the next level that a topic's level matches."""
        children = self.children or {}
        return [children[name] for name in (level, b"+") if name in children]

    def split(self) -> None:
        """Turn the first level of the rest into a node."""
        assert self.rest is not None
        level, slash, more = self.rest.partition(b"/")
        below = _Node(more if slash else None)
        below.subscriptions, below.groups = self.subscriptions, self.groups
        self.subscriptions = self.groups = self.rest = None
        self.children = {level: below}


def _rest(levels: list[bytes], at: int) -> bytes | None:
    """Return the levels from index `at` on; None if there are none."""
    return b"/".join(levels[at:]) if at < len(levels) else None


class SubscriptionTree:
    """All subscriptions by filter, and the cached routes by topic."""

    __slots__ = (
        "_nowhere",
        "_root",
        "_stream_filters",
        "_stream_for",
        "cache",
        "count",
        "shared_count",
        "version",
    )

    def __init__(
        self,
        stream_for: Callable[[bytes], Stream | None] = _no_stream,
        stream_filters: Iterable[bytes] = (),
    ) -> None:
        self._root = _Node()
        self._stream_for = stream_for
        self._stream_filters = tuple(stream_filters)
        """The filters of all streams, in the order in which they capture."""
        self._nowhere: dict[Stream | None, Route] = {}
        self.version = 0
        """Changes with every change of a subscription."""
        self.cache = RouteCache()
        self.count = 0
        self.shared_count = 0

    def leave_group(self, subscription: Subscription) -> None:
        """Deliver nothing more to a member of a shared group; `remove` does the rest."""
        group = subscription.group
        if group is not None and group.remove(subscription):
            self.shared_count -= 1
            self.count -= 1

    def add(self, subscription: Subscription, group_name: str | None = None) -> bool:
        """Add a subscription, or replace that of the same session and filter; return whether it is new."""
        node = self._node_of(subscription.topic_filter)
        if group_name is None:
            if node.subscriptions is None:
                node.subscriptions = {}
            new = subscription.session not in node.subscriptions
            node.subscriptions[subscription.session] = subscription
        else:
            if node.groups is None:
                node.groups = {}
            group = node.groups.get(group_name)
            if group is None:
                group = node.groups[group_name] = SharedGroup(group_name, subscription.topic_filter)
            subscription.group = group
            subscription.keeps_cursor = True
            subscription.session.was_group_member = True
            new = group.add(subscription)
            self.shared_count += new
        self.count += new
        self._changed(subscription.topic_filter)
        return new

    def _node_of(self, topic_filter: bytes) -> _Node:
        """Return the node at which a filter ends; create it if it is missing."""
        node = self._root
        levels = topic_filter.split(b"/")
        for at, level in enumerate(levels, 1):
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node(_rest(levels, at))
                return child
            if child.rest is not None:
                if child.rest == _rest(levels, at):
                    return child
                child.split()
            node = child
        return node

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription that `add` was given."""
        levels = subscription.topic_filter.split(b"/")
        path = [self._root]
        for at, level in enumerate(levels, 1):
            children = path[-1].children
            if children is None or level not in children:
                return
            path.append(children[level])
            rest = path[-1].rest
            if rest is not None:
                if rest != _rest(levels, at):
                    return
                break
        node = path[-1]
        group = subscription.group
        if group is None:
            if node.subscriptions is None or node.subscriptions.pop(subscription.session, None) is None:
                return
            if not node.subscriptions:
                node.subscriptions = None
            self.count -= 1
        else:
            self.leave_group(subscription)
            if not group.members and node.groups is not None and node.groups.get(group.name) is group:
                del node.groups[group.name]
                node.groups = node.groups or None
        for depth in range(len(path) - 1, 0, -1):
            node = path[depth]
            if node.children or node.subscriptions or node.groups:
                break
            children = path[depth - 1].children
            assert children is not None
            del children[levels[depth - 1]]
        self._changed(subscription.topic_filter)

    def route(self, topic: bytes) -> Route:
        """Return the route of a topic. HOT."""
        route = self.cache.routes.get(topic)
        return self._look_up(topic) if route is None else route

    def _look_up(self, topic: bytes) -> Route:
        """Return the route of a topic that is not cached, and cache it."""
        cache = self.cache
        route = cache.below(topic)
        if route is None:
            route = self._find(topic)
            self._find_prefix(topic, route)
        elif len(cache.routes) >= MAX_COVERED_ROUTES:
            return route
        cache.add(topic, route)
        return route

    def _find_prefix(self, topic: bytes, route: Route) -> None:
        """Find out whether all topics with as many levels below a prefix of a topic have its route.

        They have if all filters below the prefix consist of wildcards: a million devices with a topic each
        then need no more memory than one.
        """
        if topic.startswith(b"$") or len(topic) > MAX_CACHED_SIZE:  # [MQTT-4.7.2-1]
            return
        levels = topic.split(b"/")
        nodes = [self._root]
        at = 0
        for level in levels[: min(MAX_PREFIX_LEVELS, len(levels) - 1)]:
            below = [child for node in nodes for child in node.below(level)]
            at += len(level) + 1
            prefix = topic[:at]
            if all(child.is_wild for child in below) and self._is_one_stream(prefix):
                self.cache.add_prefix(len(levels) - 1, prefix, route)
                return
            self.cache.add_prefix(len(levels) - 1, prefix, None)
            nodes = [child for child in below if child.rest is None]
            if len(nodes) < len(below):
                return

    def _is_one_stream(self, prefix: bytes) -> bool:
        """Return whether all topics below a prefix are in the same stream, or in none."""
        head = prefix.partition(b"/")[0]
        for topic_filter in self._stream_filters:
            first = topic_filter.partition(b"/")[0]
            if first == b"#" or (topic_filter.endswith(b"/#") and prefix.startswith(topic_filter[:-1])):
                return True
            if first in (head, b"+"):
                return False
        return True

    def _changed(self, topic_filter: bytes) -> None:
        self.version += 1
        self.cache.forget_matching(topic_filter)

    def of(self, session: Session, topic: bytes) -> list[Subscription]:
        """Return the subscriptions of one session that match a topic, shared ones too."""
        found: list[Subscription] = []
        for node in self._matching(topic):
            if node.subscriptions is not None and session in node.subscriptions:
                found.append(node.subscriptions[session])
            if node.groups is not None and session.was_group_member:
                members = [group.member_of(session) for group in node.groups.values()]
                found.extend([member for member in members if member is not None])
        return found

    def _find(self, topic: bytes) -> Route:
        subscriptions: list[Subscription] = []
        groups: list[SharedGroup] = []
        for node in self._matching(topic):
            if node.subscriptions is not None:
                subscriptions.extend(node.subscriptions.values())
            if node.groups is not None:
                groups.extend(node.groups.values())
        stream = self._stream_for(topic)
        if not subscriptions and not groups:
            nowhere = self._nowhere.get(stream)
            if nowhere is None:
                nowhere = self._nowhere[stream] = Route((), (), stream)
            return nowhere
        key = (*subscriptions, *groups, stream)
        route = self.cache.shared.get(key)
        if route is None:
            targets = _one_per_session(subscriptions)
            identifiers = 0  # that of a subscription which is not combined takes no time
            if len(targets) < len(subscriptions):
                identifiers = sum(map(len, map(_IDENTIFIERS, targets)))
            route = Route(targets, tuple(groups), stream, key, identifiers)
        return route

    def _matching(self, topic: bytes) -> list[_Node]:
        """Find the nodes of all filters that match `topic`, a level at a time."""
        found: list[_Node] = []
        nodes = [self._root]
        wild = not topic.startswith(b"$")  # [MQTT-4.7.2-1]
        levels = topic.split(b"/")
        for at, level in enumerate(levels, 1):
            below: list[_Node] = []
            names = (level, b"+") if wild else (level,)
            following = levels[at] if at < len(levels) else b""
            for node in nodes:
                children = node.children
                if children is None:
                    continue
                for name in names:
                    child = children.get(name)
                    if child is None:
                        continue
                    rest = child.rest
                    if rest is None:
                        below.append(child)
                    elif (rest.startswith(following) or rest[:1] in (b"+", b"#")) and levels_match(
                        rest.split(b"/"), levels, at
                    ):
                        found.append(child)
                if wild:
                    child = children.get(b"#")
                    if child is not None:
                        found.append(child)
            nodes = below
            wild = True
            if not nodes:
                return found
        found.extend(nodes)
        for node in nodes:
            if node.children is not None:
                child = node.children.get(b"#")  # "sport/#" matches "sport", too
                if child is not None:
                    found.append(child)
        return found

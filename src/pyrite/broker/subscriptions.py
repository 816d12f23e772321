"""Who gets what: subscriptions, the tree that finds them by topic, and the cache of what it found.

A topic's route is computed once by walking the tree, and kept until a subscription that could change it
changes. So routing costs one dictionary look-up, however many filters there are.
"""

from __future__ import annotations

from collections.abc import Callable, ValuesView
from itertools import islice
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from pyrite.topics.filters import levels_match
from pyrite.topics.tree import TopicTree

if TYPE_CHECKING:
    from pyrite.broker.followers import GroupReader, Replay
    from pyrite.broker.journal import Stream
    from pyrite.broker.message import Batch
    from pyrite.broker.session import Session

COSTLY = 8
"""Receivers of a topic up to which to deliver a message takes about as long as to publish it."""
WIDE = 16
"""Receivers of a topic up to which a message is always delivered at once."""
MAX_CACHED_ROUTES = 100_000
FEW_ROUTES = 64
"""So many are not forgotten to save memory."""
FORGOTTEN_ROUTES = 1_024
"""How many are forgotten at a time, the oldest: finding the first of a dictionary takes time."""
MAX_FORGETTING_STEPS = 512
"""Steps to find the routes that a change of a subscription affects; beyond it, all are forgotten."""
MAX_CACHED_SIZE = 256
MAX_CACHED_LEVELS = 16


class Subscription:
    """One session's wish for one filter; or, in a route, all its wishes that match one topic, merged."""

    __slots__ = (
        "aside",
        "group",
        "identifiers",
        "is_answer",
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
        """What of this is left for the session's own messages, if it is merged and `no_local`."""
        self.retain_as_published = retain_as_published
        self.retain_handling = retain_handling
        self.identifiers = identifiers
        self.group = group
        self.since: dict[Stream, int] | None = None
        """From which offsets on it wants messages; None for all that it is given."""
        self.is_answer = False
        """Whether it stands for a request, whose answer is for the user who asked."""
        self.lossless = False
        """Whether QoS 0 messages that there is no room for are to be sent later, from the log."""
        self.latest = False
        """Whether of each topic only the newest message is wanted that the client has not acknowledged."""
        self.replay: Replay | None = None
        """What sends it the past. Until it has caught up, the subscription is not in the tree."""
        self.aside = False
        """Whether what is sent for it does not count for how far its session has come in the log."""

    def wants(self, batch: Batch) -> bool:
        """Tell whether a batch from the log came late enough for this subscription."""
        since, stream = self.since, batch.stream
        return since is None or stream is None or batch.offset >= since.get(stream, 0)

    def merged_with(self, other: Subscription) -> Subscription:
        """Combine two overlapping subscriptions of one session: one copy, the higher QoS [MQTT-3.3.4-2]."""
        merged = Subscription(
            self.session,
            self.topic_filter,
            max(self.qos, other.qos),
            self.no_local or other.no_local,
            self.retain_as_published or other.retain_as_published,
            0,
            self.identifiers + other.identifiers,  # [MQTT-3.3.4-3]
        )
        if merged.no_local:
            own = self.own if self.no_local else self
            others_own = other.own if other.no_local else other
            merged.own = own.merged_with(others_own) if own and others_own else own or others_own
        merged.lossless = self.lossless or other.lossless
        merged.latest = self.latest or other.latest
        return merged


class SharedGroup:
    """The members of one shared subscription, who take turns.

    To come, to leave and to be dealt messages takes the same time however many members there are.
    """

    __slots__ = ("_here", "_members", "name", "positions", "reader", "returned", "topic_filter")

    def __init__(self, name: str, topic_filter: bytes) -> None:
        self.name = name
        self.topic_filter = topic_filter
        # In the order of their turns: the next first.
        self._members: dict[Session, Subscription] = {}
        self._here: dict[Session, Subscription] = {}
        """The members that are connected."""
        self.positions: dict[Stream, int] = {}
        """Streams in which the group is behind, as no member was there or had room; and from where on."""
        self.returned: list[Batch] = []
        """What a member was dealt and gave back, for others to have."""
        self.reader: GroupReader | None = None

    @property
    def members(self) -> ValuesView[Subscription]:
        """All members."""
        return self._members.values()

    def member_of(self, session: Session) -> Subscription | None:
        """Return the member that is of a session."""
        return self._members.get(session)

    def add(self, member: Subscription) -> bool:
        """Add a member, or replace that of its session; return whether it is new."""
        new = member.session not in self._members
        self._members[member.session] = member
        if member.session.link is not None:
            self._here[member.session] = member
        return new

    def remove(self, member: Subscription) -> bool:
        """Remove a member; return whether it was one."""
        session = member.session
        if self._members.get(session) is not member:
            return False
        del self._members[session]
        self._here.pop(session, None)
        return True

    def came(self, member: Subscription) -> None:
        """Note that a member's session is connected."""
        if self._members.get(member.session) is member:
            self._here[member.session] = member

    def went(self, member: Subscription) -> None:
        """Note that a member's session is not connected any more."""
        self._here.pop(member.session, None)

    def has_others(self, session: Session, connected: bool) -> bool:
        """Return whether there are members besides that of a session: such as are connected, or any."""
        members = self._here if connected else self._members
        return len(members) > (session in members)

    def shares(self, count: int, besides: Session | None = None) -> list[tuple[Subscription, int, int]]:
        """Deal `count` messages to the members in turn: (member, start, stop) each, fair over time.

        Members that are connected come first: one that is away gets messages only if no one is here.
        """
        members = self._here
        if len(members) == (besides in members):
            members = self._members
        chosen = list(islice((one for session, one in members.items() if session is not besides), count))
        if not chosen:
            return []
        each, extra = divmod(count, len(chosen))
        deals = []
        start = 0
        for number, member in enumerate(chosen):
            stop = start + each + (number < extra)
            deals.append((member, start, stop))
            start = stop
        for member in chosen[: extra or len(chosen)]:
            members[member.session] = members.pop(member.session)
        return deals

    def with_room(self) -> list[Subscription]:
        """Return the members that can be sent a message right now, from the one whose turn it is on."""
        return [member for member in self._here.values() if not member.qos or member.session.capacity]

    def had_turn(self, member: Subscription) -> None:
        """Note that a member was dealt messages: the others come first now."""
        if member.session in self._here:
            self._here[member.session] = self._here.pop(member.session)


class Route:
    """Who gets the messages of a topic. Topics whose messages go to the same subscriptions share a route."""

    __slots__ = (
        "__weakref__",
        "_as_of",
        "_places",
        "_present",
        "groups",
        "is_costly",
        "is_wide",
        "receivers",
        "stream",
        "targets",
    )

    def __init__(
        self, targets: tuple[Subscription, ...], groups: tuple[SharedGroup, ...], stream: Stream | None
    ) -> None:
        self.targets = targets
        self.groups = groups
        self.stream = stream
        """The stream that captures these topics, if one does."""
        self.receivers = len(targets) + len(groups)
        self.is_costly = self.receivers > COSTLY
        """Whether delivering a message takes much longer than publishing it."""
        self.is_wide = self.receivers > WIDE
        """Whether delivering a message may take long."""
        self._present = targets
        self._as_of = -1
        self._places: dict[Session | SharedGroup, int] | None = None

    def present(self, as_of: int) -> tuple[Subscription, ...]:
        """Return the targets that will not read it from the log; found anew when clients come or go."""
        if self._as_of != as_of:
            self._as_of = as_of
            self._present = tuple([one for one in self.targets if one.session.link is not None or one.latest])
        return self._present

    @property
    def places(self) -> dict[Session | SharedGroup, int]:
        """Where in `targets` each session is, and in `groups` each group."""
        if self._places is None:
            self._places = {one.session: place for place, one in enumerate(self.targets)}
            self._places.update({one: place for place, one in enumerate(self.groups)})
        return self._places


def _no_stream(topic: bytes) -> Stream | None:
    return None


class _Node:
    """One level of the filters' tree. Its parts are made when needed: most nodes have one of them.

    Levels that only one filter has are no nodes, but the `rest` of the last node: so a filter costs about as
    much as it is long, however many levels it has.
    """

    __slots__ = ("children", "groups", "rest", "subscriptions")

    def __init__(self, rest: bytes | None = None) -> None:
        self.children: dict[bytes, _Node] | None = None
        self.subscriptions: dict[Session, Subscription] | None = None
        self.groups: dict[str, SharedGroup] | None = None
        self.rest = rest
        """The levels that follow to the end of the only filter here; there are no children then."""

    def split(self) -> None:
        """Make a node of the first level of the rest."""
        assert self.rest is not None
        level, slash, more = self.rest.partition(b"/")
        below = _Node(more if slash else None)
        below.subscriptions, below.groups = self.subscriptions, self.groups
        self.subscriptions = self.groups = self.rest = None
        self.children = {level: below}


def _rest(levels: list[bytes], at: int) -> bytes | None:
    """Return the levels from one on; None if there are none."""
    return b"/".join(levels[at:]) if at < len(levels) else None


class SubscriptionTree:
    """All subscriptions, by filter; and the routes already found, by topic."""

    __slots__ = (
        "_cache",
        "_nowhere",
        "_root",
        "_shared",
        "_stream_for",
        "count",
        "forgotten",
        "routes",
        "shared_count",
        "version",
    )

    def __init__(self, stream_for: Callable[[bytes], Stream | None] = _no_stream) -> None:
        self._root = _Node()
        self._stream_for = stream_for
        self._cache: TopicTree[Route] = TopicTree()
        self._shared: WeakValueDictionary[tuple[Subscription | SharedGroup | Stream | None, ...], Route] = (
            WeakValueDictionary()
        )
        self._nowhere: dict[Stream | None, Route] = {}
        self.version = 0
        """Changes with every change of a subscription."""
        self.routes = self._cache.values
        """The routes already found, for the hot path to look up; `route` finds the others."""
        self.count = 0
        self.shared_count = 0
        self.forgotten: list[TopicTree[Route]] = []
        """Routes that were forgotten together. To free that memory takes time, which the broker divides."""

    def leave_group(self, subscription: Subscription) -> None:
        """Have a member of a shared subscription be dealt nothing more; `remove` does the rest."""
        group = subscription.group
        if group is not None and group.remove(subscription):
            self.shared_count -= 1
            self.count -= 1

    def add(self, subscription: Subscription, group_name: str | None = None) -> bool:
        """Add a subscription, replacing one of the same session and filter; tell whether it was new."""
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
            subscription.aside = True
            subscription.session.is_dealt_to = True
            new = group.add(subscription)
            self.shared_count += new
        self.count += new
        self._forget_routes(subscription.topic_filter)
        return new

    def _node_of(self, topic_filter: bytes) -> _Node:
        """Return the node at which a filter ends; it is made if it is not there."""
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
        self._forget_routes(subscription.topic_filter)

    def route(self, topic: bytes) -> Route:
        """Return who gets the messages of `topic`."""
        route = self.routes.get(topic)
        if route is None:
            route = self._find(topic)
            if len(topic) <= MAX_CACHED_SIZE and topic.count(b"/") < MAX_CACHED_LEVELS:
                if len(self.routes) >= MAX_CACHED_ROUTES:
                    self.forget_oldest()
                self._cache[topic] = route
        return route

    def forget_oldest(self, but: int = FEW_ROUTES) -> int:
        """Make room for other routes, or memory for anything; a few remain. Return how many were forgotten.

        A dictionary looks for its first entry among all that were removed before it, and those may be as many
        as there are entries: so not for one route at a time.
        """
        oldest = list(islice(self.routes, max(0, min(FORGOTTEN_ROUTES, len(self.routes) - but))))
        for topic in oldest:
            self._cache.pop(topic)
        return len(oldest)

    def _forget_routes(self, topic_filter: bytes) -> None:
        self.version += 1
        found = list(islice(self._cache.steps(topic_filter), MAX_FORGETTING_STEPS + 1))
        if len(found) > MAX_FORGETTING_STEPS:
            self.forgotten.append(self._cache)
            self._cache = TopicTree()
            self.routes = self._cache.values
            return
        for topic in found:
            if topic is not None:
                self._cache.pop(topic)

    def of(self, session: Session, topic: bytes) -> list[Subscription]:
        """Return the subscriptions of one session, shared ones too, whose filters match `topic`."""
        found: list[Subscription] = []
        for node in self._matching(topic):
            if node.subscriptions is not None and session in node.subscriptions:
                found.append(node.subscriptions[session])
            if node.groups is not None and session.is_dealt_to:
                members = (group.member_of(session) for group in node.groups.values())
                found.extend(member for member in members if member is not None)
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
        route = self._shared.get(key)
        if route is None:
            targets: dict[Session, Subscription] = {}
            for subscription in subscriptions:
                other = targets.get(subscription.session)
                merged = subscription if other is None else other.merged_with(subscription)
                targets[subscription.session] = merged
            route = self._shared[key] = Route(tuple(targets.values()), tuple(groups), stream)
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
                child = node.children.get(b"#")  # "sport/#" asks for "sport" too
                if child is not None:
                    found.append(child)
        return found

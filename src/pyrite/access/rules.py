"""Rules: the topics on which users and groups may publish, subscribe, pull and administer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyrite.topics.filters import covers

EVERYONE = "*"
"""In a rule: every user with a name."""
ANONYMOUS = "anonymous"
"""In a rule: clients without a user name."""
_MARK = re.compile("%[uc]")
ACTIONS = ("publish", "subscribe", "pull", "admin")


@dataclass(slots=True)
class Rule:
    """One rule. Its filters may contain %u, the user name, and %c, the client identifier."""

    users: list[str] = field(default_factory=list)
    """User names; * for all users, anonymous for clients without a user name."""
    groups: list[str] = field(default_factory=list)
    """Names of groups; the rule applies to their members."""
    publish: list[str] = field(default_factory=list)
    """Filters of topics to publish on."""
    subscribe: list[str] = field(default_factory=list)
    """Filters to subscribe to, or whose topics to list; filters that they cover are included."""
    pull: list[str] = field(default_factory=list)
    """The same for reading the log: pull, HTTP, Flight, Spark, and subscriptions from a position."""
    admin: list[str] = field(default_factory=list)
    """The same for creating and deleting topics; with #, also for listing clients and metrics."""


class Rules:
    """All rules."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules

    def allows(
        self, action: str, user: str | None, groups: frozenset[str], client_id: str, topic_filter: bytes
    ) -> bool:
        """Return True if a client may perform an action on all topics of a filter."""
        granted = self._granted(action, user, groups, client_id)
        return any(covers(allowed, topic_filter) for allowed in granted)

    def overlap(
        self, action: str, user: str | None, groups: frozenset[str], client_id: str, topic_filter: bytes
    ) -> bool:
        """Return True if a client may perform an action on at least one topic of a filter."""
        granted = self._granted(action, user, groups, client_id)
        return any(overlap(allowed, topic_filter) for allowed in granted)

    def _granted(
        self, action: str, user: str | None, groups: frozenset[str], client_id: str
    ) -> Iterator[bytes]:
        """Yield the filters on which a client may perform an action."""
        # A token or certificate may contain any name, even "anonymous".
        names = {ANONYMOUS} if user is None else {user, EVERYONE} - {ANONYMOUS}
        for rule in self._rules:
            if names.isdisjoint(rule.users) and groups.isdisjoint(rule.groups):
                continue
            for text in getattr(rule, action):
                allowed = _filled(text, user, client_id)
                if allowed is not None:
                    yield allowed


def overlap(one: bytes, other: bytes) -> bool:
    """Return True if some topic matches both filters."""
    levels, others = one.split(b"/"), other.split(b"/")
    for level, another in zip(levels, others, strict=False):
        if b"#" in (level, another):
            return True
        if level != another and b"+" not in (level, another):
            return False
    longer = max(levels, others, key=len)[min(len(levels), len(others)) :]
    return not longer or longer == [b"#"]


def _filled(text: str, user: str | None, client_id: str) -> bytes | None:
    """Replace %u and %c in a filter; None if a name is missing, or contains a wildcard or a slash."""
    names = {"%u": user, "%c": client_id}
    for mark in set(_MARK.findall(text)):
        name = names[mark]
        if not name or name.startswith("$") or any(one in name for one in "+#/"):
            return None
    # In one pass, so that %c in a user name is not replaced.
    return _MARK.sub(lambda mark: names[mark[0]] or "", text).encode()

"""Rules: which users and groups may do what, on which topics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyrite.topics.filters import covers

EVERYONE = "*"
"""Stands for whoever has come in under a name."""
ANONYMOUS = "anonymous"
"""Stands for whoever has come in without one."""
_MARK = re.compile("%[uc]")
ACTIONS = ("publish", "subscribe", "pull", "admin")


@dataclass(slots=True)
class Rule:
    """What some may do; a filter may hold %u, the user's name, and %c, the client's id."""

    users: list[str] = field(default_factory=list)
    """Names of users; * for all of them, anonymous for clients without a name."""
    groups: list[str] = field(default_factory=list)
    """Names of groups, all of whose members are meant."""
    publish: list[str] = field(default_factory=list)
    """Filters of the topics that they may publish on."""
    subscribe: list[str] = field(default_factory=list)
    """Filters that they may subscribe to, or list the topics of, and those within."""
    pull: list[str] = field(default_factory=list)
    """The same for what they may read from the log: by pull, with HTTP, Flight and Spark; and to subscribe
    to the past."""
    admin: list[str] = field(default_factory=list)
    """The same for topics that they may create and delete; with #, also for seeing who is connected."""


class Rules:
    """All rules, asked for one client at a time."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules

    def allows(
        self, action: str, user: str | None, groups: frozenset[str], client_id: str, topic_filter: bytes
    ) -> bool:
        """Tell whether a client may do something on all topics of a filter; a topic is a filter too."""
        granted = self._granted(action, user, groups, client_id)
        return any(covers(allowed, topic_filter) for allowed in granted)

    def overlap(
        self, action: str, user: str | None, groups: frozenset[str], client_id: str, topic_filter: bytes
    ) -> bool:
        """Tell whether a client may do something on any topic of a filter."""
        granted = self._granted(action, user, groups, client_id)
        return any(overlap(allowed, topic_filter) for allowed in granted)

    def _granted(
        self, action: str, user: str | None, groups: frozenset[str], client_id: str
    ) -> Iterator[bytes]:
        """Yield the filters on which a client may do something."""
        # A token or a certificate may have any name: it is never that of those who have none.
        names = {ANONYMOUS} if user is None else {user, EVERYONE} - {ANONYMOUS}
        for rule in self._rules:
            if names.isdisjoint(rule.users) and groups.isdisjoint(rule.groups):
                continue
            for text in getattr(rule, action):
                allowed = _filled(text, user, client_id)
                if allowed is not None:
                    yield allowed


def overlap(one: bytes, other: bytes) -> bool:
    """Tell whether there may be a topic that two filters match."""
    levels, others = one.split(b"/"), other.split(b"/")
    for level, another in zip(levels, others, strict=False):
        if b"#" in (level, another):
            return True
        if level != another and b"+" not in (level, another):
            return False
    longer = max(levels, others, key=len)[min(len(levels), len(others)) :]
    return not longer or longer == [b"#"]


def _filled(text: str, user: str | None, client_id: str) -> bytes | None:
    """Put a client's names into a filter; None if one is not known, or would mean more than a name."""
    names = {"%u": user, "%c": client_id}
    for mark in set(_MARK.findall(text)):
        name = names[mark]
        if not name or name.startswith("$") or any(one in name for one in "+#/"):
            return None
    # In one pass: a mark in a name is no mark.
    return _MARK.sub(lambda mark: names[mark[0]] or "", text).encode()

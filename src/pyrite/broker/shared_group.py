"""A shared group: the members of one shared subscription, which take turns."""

from __future__ import annotations

from collections.abc import ValuesView
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyrite.broker.followers import GroupReader
    from pyrite.broker.journal import Stream
    from pyrite.broker.message import Batch
    from pyrite.broker.session import Session
    from pyrite.broker.subscriptions import Subscription


class SharedGroup:
    """The members of a shared subscription. Every operation takes the same time however many they are."""

    __slots__ = ("_here", "_members", "name", "positions", "reader", "returned", "topic_filter")

    def __init__(self, name: str, topic_filter: bytes) -> None:
        self.name = name
        self.topic_filter = topic_filter
        # In the order of their turns, the next first.
        self._members: dict[Session, Subscription] = {}
        self._here: dict[Session, Subscription] = {}
        """The members that are connected."""
        self.positions: dict[Stream, int] = {}
        """The offset from which the group reads each stream in which it is behind: no member had room."""
        self.returned: list[Batch] = []
        """Messages that a member left unacknowledged, for other members."""
        self.reader: GroupReader | None = None

    @property
    def members(self) -> ValuesView[Subscription]:
        """All members."""
        return self._members.values()

    def member_of(self, session: Session) -> Subscription | None:
        """Return a session's membership."""
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
        """Record that a member's session is connected."""
        if self._members.get(member.session) is member:
            self._here[member.session] = member

    def went(self, member: Subscription) -> None:
        """Record that a member's session is not connected any more."""
        self._here.pop(member.session, None)

    def has_others(self, session: Session, connected: bool) -> bool:
        """Return whether there are members besides that of a session: connected ones, or any."""
        members = self._here if connected else self._members
        return len(members) > (session in members)

    def shares(self, count: int, besides: Session | None = None) -> list[tuple[Subscription, int, int]]:
        """Divide `count` messages among the members in turn: (member, start, stop) each, fair over time.

        Members that are not connected get messages only if none is.
        """
        members = self._here
        if len(members) == (besides in members):
            members = self._members
        chosen = [one for one in islice(members.values(), count + 1) if one.session is not besides][:count]
        if not chosen:
            return []
        each, extra = divmod(count, len(chosen))
        shares = []
        start = 0
        for number, member in enumerate(chosen):
            stop = start + each + (number < extra)
            shares.append((member, start, stop))
            start = stop
        for member in chosen[: extra or len(chosen)]:
            members[member.session] = members.pop(member.session)
        return shares

    def with_room(self) -> list[Subscription]:
        """Return the members that can be sent a message right now, the next in turn first."""
        return [member for member in self._here.values() if not member.qos or member.session.capacity]

    def had_turn(self, member: Subscription) -> None:
        """Record that a member was given messages: the others come first now."""
        if member.session in self._here:
            self._here[member.session] = self._here.pop(member.session)

"""Delivery to shared groups: each message goes to one member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrite.broker.followers import GroupReader
from pyrite.topics.filters import matches

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.broker.message import Batch
    from pyrite.broker.session import Session
    from pyrite.broker.shared_group import SharedGroup


class SharedGroups:
    """Delivers to shared groups, and tracks the groups that read from the log."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.behind: set[SharedGroup] = set()
        """Groups with messages for which no member had room."""

    def deliver(self, batch: Batch, group: SharedGroup, besides: Session | None = None) -> None:
        """Deliver a batch to a group, to members other than that of the session `besides`."""
        if batch.stream is None or not batch.qos:
            for member, start, stop in group.shares(batch.count, besides):
                member.session.deliver(batch.part(start, stop), member)
        elif batch.stream not in group.positions:
            taken = 0 if group.returned else self.deliver_with_room(batch, group)
            if taken < batch.count:
                group.positions[batch.stream] = batch.offset + taken
                self.fall_behind(group)

    def deliver_with_room(self, batch: Batch, group: SharedGroup) -> int:
        """Deliver as many messages, from the first, as members have room for now; return how many."""
        done = before = 0
        while done < batch.count:
            members = group.with_room()
            share = -(-(batch.count - done) // max(1, len(members)))
            for member in members:
                if done == batch.count:
                    break
                part = batch.part(done, min(done + share, batch.count))
                taken = member.session.send_share(part, member)
                if taken:
                    done += taken
                    group.had_turn(member)
            if done == before:
                break
            before = done
        return done

    def redeliver(self, batch: Batch, group: SharedGroup) -> None:
        """Deliver messages again that a member left unacknowledged."""
        group.returned.append(batch)
        self.fall_behind(group)

    def redeliver_logged(self, places: list[Batch], groups: list[SharedGroup]) -> None:
        """Deliver messages again that are known by their offset in the log alone, not even by topic."""

        def found(batches: dict[int, Batch]) -> None:
            for batch in batches.values():
                for group in groups:
                    if group.members and matches(group.topic_filter, batch.topic):
                        self.redeliver(batch, group)
                        break

        for place in places:
            assert place.stream is not None
            offsets = range(place.offset, place.offset + place.count)
            self._broker.journal.fetch(place.stream, offsets, found)

    def fall_behind(self, group: SharedGroup) -> None:
        """Have a group read from the log as its members have room."""
        self.behind.add(group)
        if group.reader is None:
            group.reader = GroupReader(self._broker, group)
        self._broker.journal.state.save_group(group)
        group.reader.read_on()

    def caught_up(self, group: SharedGroup) -> None:
        """Have a group take messages as they are routed."""
        group.reader = None
        self.behind.discard(group)
        self._broker.journal.state.save_group(group)

    def restored(self, group: SharedGroup) -> None:
        """Continue a group of an earlier process where it was."""
        if group.positions or group.returned:
            self.fall_behind(group)

    def end(self, group: SharedGroup) -> None:
        """Forget a group whose last member has left."""
        if group.reader is not None:
            group.reader.stop()
        self.behind.discard(group)
        self._broker.journal.state.drop_group(group)

"""Reading the log for sessions and subscriptions: when they catch up, replay, and become live."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyrite.broker.fanout import lowest_offsets
from pyrite.broker.followers import CatchUp, Replay
from pyrite.storage.positions import Earliest, Latest, Offset, Position
from pyrite.topics.filters import matches

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.broker.journal import Stream
    from pyrite.broker.message import Batch
    from pyrite.broker.session import Session
    from pyrite.broker.subscriptions import Subscription


class Following:
    """Starts and ends the followers of sessions and subscriptions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def catch_up(self, session: Session) -> None:
        """Deliver to a connected session the messages that it missed."""
        if not any(one.qos and one.group is None for one in session.subscriptions.values()):
            session.positions = None  # a session that was away does not get QoS 0
            return
        if session.follower is None:
            session.follower = CatchUp(self._broker, session)
        session.follower.read_on()

    def replay(
        self,
        key: bytes,
        subscription: Subscription,
        positions: dict[Stream, int],
        seen: dict[Stream, int] | None = None,
        until: tuple[Stream, int] | None = None,
    ) -> None:
        """Replay to a subscription from `positions`, then make it live. Its session is connected."""
        self._broker.subscriptions.remove(subscription)
        replay = Replay(self._broker, key, subscription, positions, seen, until)
        session = subscription.session
        session.add_replay(replay)
        self._broker.subscribing.save(key, subscription)
        replay.read_on()

    def replay_from(self, key: bytes, subscription: Subscription, position: Position) -> None:
        """Replay to a subscription from a position that the client asked for, then make it live."""
        broker, journal = self._broker, self._broker.journal
        broker.fan_outs.settle(subscription.session)
        self.end_replay(subscription)
        subscription.since = None
        match position:
            case Earliest():
                self.replay(key, subscription, {one: journal.earliest(one) for one in journal.streams})
            case Offset(offset):
                self.replay(key, subscription, {one: min(offset, one.routed) for one in journal.streams})
            case Latest():
                self.replay(key, subscription, {one: one.routed for one in journal.streams})
            case _:
                self._replay_since(key, subscription, position.seconds(journal.wall()))

    def _replay_since(self, key: bytes, subscription: Subscription, when: float) -> None:
        broker = self._broker
        streams = broker.journal.streams
        broker.subscriptions.remove(subscription)  # until the offsets are known
        found: dict[Stream, int] = {}

        def answer(stream: Stream, offset: int) -> None:
            found[stream] = offset
            if len(found) == len(streams) and subscription.session.subscriptions.get(key) is subscription:
                self.replay(key, subscription, found)

        for stream in streams:
            broker.journal.offset_at(stream, when, partial(answer, stream))

    def continue_replays(self, session: Session) -> None:
        """Continue the replays that the end of the session's last connection interrupted."""
        replays, session.replays = session.replays or (), None
        for replay in replays:
            again = replay.again()
            session.add_replay(again)
            again.read_on()

    def go_live(self, key: bytes, subscription: Subscription) -> None:
        """Deliver new messages to a subscription whose replay has caught up."""
        broker, session = self._broker, subscription.session
        session.remove_replay(subscription.replay)
        subscription.replay = None
        subscription.keeps_cursor = False
        subscription.since = {stream: stream.routed for stream in broker.journal.streams}
        broker.subscriptions.add(subscription)
        broker.subscribing.save(key, subscription)

    def defer(self, target: Subscription, batch: Batch) -> None:
        """Replay a batch, and the messages after it, to lossless subscriptions without room for it."""
        broker, session, stream = self._broker, target.session, batch.stream
        assert stream is not None
        streams = broker.journal.streams
        owed = [batch, *[one for one in broker.fan_outs.owed_to(session) if one.stream is not None]]
        for key, subscription in list(session.subscriptions.items()):
            if (
                subscription.lossless
                and subscription.group is None
                and subscription.replay is None
                and any(matches(subscription.topic_filter, part.topic) for part in batch.parts())
            ):
                first = lowest_offsets(owed)
                positions = {one: min(one.routed, first.get(one, one.routed)) for one in streams}
                unseen = lowest_offsets([one for one in owed if not one.qos])
                seen = {one: unseen.get(one, one.next_offset) for one in streams}
                self.replay(key, subscription, positions, seen, (stream, batch.offset + batch.count))
        broker.fan_outs.retarget(session)

    def end_replay(self, subscription: Subscription) -> None:
        """End the replay of a subscription, if there is one."""
        replay, session = subscription.replay, subscription.session
        if replay is not None:
            replay.stop()
            session.remove_replay(replay)
            subscription.replay = None

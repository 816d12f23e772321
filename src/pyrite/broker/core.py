"""The broker: all of its state, assembled from parts that each hold one idea.

It has no sockets, no files and no clock: connections call its parts, `tick` tells it the time, and after a
call of `wake`, its driver (a server's event loop, a test) gives turns and flushes output. Everything durable
goes through a `Journal`: a QoS 1 or 2 message that a stream captures is delivered once it is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyrite.broker.access import Access
from pyrite.broker.admission import Admission, Aside
from pyrite.broker.catalog import Catalog, TopicOptions
from pyrite.broker.fanout import FanOuts
from pyrite.broker.figures import Figures
from pyrite.broker.following import Following
from pyrite.broker.groups import SharedGroups
from pyrite.broker.journal import Journal, MemoryJournal
from pyrite.broker.limits import Limits
from pyrite.broker.output import Output
from pyrite.broker.policy import Policy
from pyrite.broker.publishing import Publishing
from pyrite.broker.quotas import QuotaOptions, Quotas
from pyrite.broker.retained import Retained
from pyrite.broker.sessions import Sessions
from pyrite.broker.subscribing import Subscribing
from pyrite.broker.subscriptions import SubscriptionTree
from pyrite.broker.timers import TURN, Timers
from pyrite.broker.turns import Turns

if TYPE_CHECKING:
    from pyrite.broker.consumers import Consumer

QUIET_MESSAGES = 100
"""Messages between two ticks below which there is time to find routes again."""


def _do_nothing() -> None:
    pass


def _no_clock() -> float:
    """Stand in for a clock: in a broker that is driven by hand, everything takes no time."""
    return 0.0


def _inline(job: Callable[[], Any], then: Callable[[Any], object]) -> None:
    """Stand in for another thread."""
    then(job())


class Broker:
    """One broker's parts, its time, and what happens with the time."""

    def __init__(
        self,
        limits: Limits | None = None,
        access: Access | None = None,
        wake: Callable[[], object] = _do_nothing,
        clock: Callable[[], float] = _no_clock,
        journal: Journal | None = None,
        topics: TopicOptions | None = None,
        aside: Aside | None = None,
        quotas: QuotaOptions | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.access = access or Access()
        self.wake = wake
        """Called when there is something to do or to send, and no work is going on."""
        self.alert: Callable[[], object] = _do_nothing
        """Called on an event that observers of the broker should see at once."""
        self.clock = clock
        """A precise clock, which only measures how long work takes."""
        self.now = 0.0
        """The time in seconds since some point in the past, as `tick` told it."""
        self.is_quiet = False
        """Whether traffic is low and the caches have been trimmed."""
        self._more_is_due = False
        self._received = 0
        """Messages received until the last tick."""

        self.figures = Figures()
        self.timers = Timers()
        self.journal = journal or MemoryJournal()
        self.turns = Turns(self)
        self.output = Output(self)

        self.subscriptions = SubscriptionTree(self.journal.stream_for)
        self.sessions = Sessions(self)
        self.consumers: dict[str, Consumer] = {}
        self.quotas = Quotas(self, quotas or QuotaOptions())
        self.retained = Retained(self)
        self.catalog = Catalog(self, topics)

        self.admission = Admission(self, aside or _inline)
        self.policy = Policy(self)

        self.fan_outs = FanOuts(self)
        self.groups = SharedGroups(self)
        self.publishing = Publishing(self)
        self.subscribing = Subscribing(self)
        self.following = Following(self)

    def tick(self, now: float) -> None:
        """Set the time, and do what is due."""
        self.now = now
        self._do_what_is_due()
        received, self._received = self._received, self.figures.publish_received
        quiet = self._received - received < QUIET_MESSAGES
        forgotten = (
            quiet and self.subscriptions.cache.forget_oldest()
        )  # scattered, they keep much memory in use
        self.is_quiet = quiet and not forgotten

    def _do_what_is_due(self) -> None:
        """Do it for a turn: many sessions may expire at one time."""
        until = self.clock() + TURN
        if self.timers.advance(self.now, lambda: self.clock() > until) and not self._more_is_due:
            self._more_is_due = True
            self.turns.soon(self._do_more_that_is_due)

    def _do_more_that_is_due(self) -> None:
        self._more_is_due = False
        self._do_what_is_due()

    def access_changed(self) -> None:
        """Apply changed users, rules or quotas of groups."""
        self.admission.changed()
        self.quotas.access_changed()

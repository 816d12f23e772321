"""The broker: all of its state, assembled from parts that each hold one idea.

It has no sockets, no files and no clock: connections call its parts, `tick` tells it the time, and after a
call of `wake`, its driver (a server's event loop, a test) gives turns and flushes output. Everything durable
goes through a `Journal`: a QoS 1 or 2 message that a stream captures is delivered once it is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyrite.broker.access import Access
from pyrite.broker.admission import Admission, Offload
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
"""Messages between two ticks below which the route cache may be trimmed."""


def _do_nothing() -> None:
    pass


def _no_clock() -> float:
    """Default clock, for tests: work takes no time."""
    return 0.0


def _inline(job: Callable[[], Any], then: Callable[[Any], object]) -> None:
    """Default `offload`: run the job at once."""
    then(job())


class Broker:
    """Holds the parts of one broker, and drives its timers."""

    def __init__(
        self,
        limits: Limits | None = None,
        access: Access | None = None,
        wake: Callable[[], object] = _do_nothing,
        clock: Callable[[], float] = _no_clock,
        journal: Journal | None = None,
        topics: TopicOptions | None = None,
        offload: Offload | None = None,
        quotas: QuotaOptions | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.access = access or Access()
        self.wake = wake
        """Called when work or output begins to wait."""
        self.alert: Callable[[], object] = _do_nothing
        """Called on an event that observers of the broker should see at once."""
        self.clock = clock
        """A precise clock, used only to measure how long work takes."""
        self.now = 0.0
        """The current time in seconds, as set by `tick`."""
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

        self.subscriptions = SubscriptionTree(
            self.journal.stream_for, [one for stream in self.journal.streams for one in stream.filters]
        )
        self.sessions = Sessions(self)
        self.consumers: dict[str, Consumer] = {}
        self.quotas = Quotas(self, quotas or QuotaOptions())
        self.retained = Retained(self)
        self.catalog = Catalog(self, topics)

        self.admission = Admission(self, offload or _inline)
        self.policy = Policy(self)

        self.fan_outs = FanOuts(self)
        self.groups = SharedGroups(self)
        self.publishing = Publishing(self)
        self.subscribing = Subscribing(self)
        self.following = Following(self)

    def tick(self, now: float) -> None:
        """Set the time, and handle due timers."""
        self.now = now
        self._do_what_is_due()
        received, self._received = self._received, self.figures.publish_received
        quiet = self._received - received < QUIET_MESSAGES
        forgotten = (
            quiet and self.subscriptions.cache.forget_oldest()
        )  # scattered, they keep much memory in use
        self.is_quiet = quiet and not forgotten

    def _do_what_is_due(self) -> None:
        """Handle due timers for one turn: many sessions may expire at one time."""
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

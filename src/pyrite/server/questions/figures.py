"""Questions about the log and the broker's figures."""

from __future__ import annotations

import resource

from pyrite.broker.access import Credentials
from pyrite.broker.core import Broker
from pyrite.broker.figures import Figures
from pyrite.server.memory import resident
from pyrite.server.questions.about import About
from pyrite.server.questions.problem import Message, Problem, Reply, refused
from pyrite.server.questions.topics import checked_filter

FIGURES = [name for name in Figures.__slots__ if isinstance(getattr(Figures(), name), int | float)]
"""Those that are plain numbers."""
SYSTEM_FIGURES = {
    "commit_median": b"$SYS/broker/log/commits/median",
    "commit_longest": b"$SYS/broker/log/commits/longest",
    "consumers_pending": b"$SYS/broker/consumers/pending",
}
"""Those that $SYS makes of what it has gathered since the last time; times are in milliseconds there."""


class Log:
    """Knows what streams there are."""

    def __init__(self, broker: Broker, about: About) -> None:
        self._broker = broker
        self._about = about

    def streams(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Tell from which streams the caller may pull, and which of their filters it may pull."""
        access = self._broker.access
        if not access.checks_topics:
            reply({"streams": self._streams(), "withheld": False})
            return
        told, withheld = [], False
        for one in self._streams():
            filters = len(one["topics"])
            if any(access.may_within("pull", who, topic) for topic in one["topics"]):
                one["topics"] = [topic for topic in one["topics"] if access.may_pull(who, topic)]
                told.append(one)
                withheld = withheld or len(one["topics"]) < filters
            else:
                withheld = True
        reply({"streams": told, "withheld": withheld})

    def _streams(self) -> list[Message]:
        journal = self._broker.journal
        fault = None if journal.fault is None else journal.fault.text
        return [
            {
                "name": one.name,
                "topics": [topic.decode() for topic in one.filters],
                "first": journal.earliest(one),
                "end": one.routed,
                "error": fault,
            }
            for one in journal.streams
        ]

    def read(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Tell that someone may read a filter of a stream."""
        checked_filter(self._broker, message["filter"])
        access = self._broker.access
        if access.checks_topics and not access.may_pull(who, message["filter"]):
            raise refused("pull", message["filter"])
        if message["stream"] not in [one.name for one in self._broker.journal.streams]:
            raise Problem(404, f"there is no stream {message['stream']!r}")
        reply(None)

    def figures(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Tell all figures."""
        access = self._broker.access
        if access.checks_topics and not access.may_admin(who, "#"):
            raise refused("admin", "#")
        self.all_figures(message, reply)

    def all_figures(self, message: Message, reply: Reply) -> None:
        """Tell all figures, whoever asks."""
        broker = self._broker
        figures, journal = broker.figures, broker.journal
        used = resource.getrusage(resource.RUSAGE_SELF)
        reply(
            {
                **{name: getattr(figures, name) for name in FIGURES},
                **{name: self._published(topic) for name, topic in SYSTEM_FIGURES.items()},
                "sessions": len(broker.sessions),
                "subscriptions": broker.subscriptions.count,
                "shared_subscriptions": broker.subscriptions.shared_count,
                "retained": len(broker.retained),
                "retained_bytes": broker.retained.bytes,
                "created_topics": len(broker.catalog.created),
                "consumers": len(broker.consumers),
                "log_damaged": journal.damages_found,
                "log_fault": journal.fault is not None,
                "uptime": self._about.uptime,
                "cpu": used.ru_utime + used.ru_stime,
                "memory": resident(),
                "streams": self._streams(),
            }
        )

    def _published(self, topic: bytes) -> float | None:
        """Return a figure of $SYS, if it is there."""
        batch = self._broker.retained.values.get(topic)
        return None if batch is None else float(batch.payload())

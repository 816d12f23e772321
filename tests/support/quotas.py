"""Users accepted by name, and the usage of quotas recounted from scratch."""

from __future__ import annotations

from typing import Any

from pyrite.broker.access import Accept, Access, Credentials
from pyrite.broker.core import Broker
from pyrite.broker.quotas import Quota, QuotaOptions
from pyrite.broker.retained import SYSTEM, retained_size

COUNTED = (
    "sessions",
    "connections",
    "subscriptions",
    "consumers",
    "retained_messages",
    "retained_bytes",
    "stored_bytes",
    "concurrent_reads",
)


class Named(Access):
    """Accepts every user name as proved; `members` assigns users to groups."""

    def __init__(self, **members: str) -> None:
        self.members = members

    def authenticate(self, credentials: Credentials) -> Accept:
        return Accept(username=credentials.username)

    def groups_of(self, credentials: Credentials) -> frozenset[str]:
        return frozenset(self.members.get(credentials.username or "", "").split())


def quotas(default: Quota | None = None, **users: Quota) -> QuotaOptions:
    return QuotaOptions(default or Quota(), users, {})


def usage(broker: Broker) -> dict[str, dict[str, int]]:
    """Return the usage of each account as the broker counts it."""
    found = {
        key: {name: getattr(account, name) for name in COUNTED}
        for key, account in broker.quotas.accounts.items()
    }
    return {key: used for key, used in found.items() if any(used.values())}


def recount(broker: Broker, log: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the usage recounted from scratch; every payload in the log begins with its user's name."""
    found: dict[str, dict[str, int]] = {}

    def count(key: str | None, name: str, more: int = 1) -> None:
        if key is not None:
            used = found.setdefault(key, dict.fromkeys(COUNTED, 0))
            used[name] += more

    for session in broker.sessions.by_id.values():
        key = session.account.key if session.account is not None else None
        count(key, "sessions")
        count(key, "connections", session.link is not None)
        count(key, "subscriptions", len(session.subscriptions))
    for consumer in broker.consumers.values():
        count(consumer.owner.key if consumer.owner is not None else None, "consumers")
    for topic, batch in broker.retained.values.items():
        if not topic.startswith(SYSTEM):
            key = batch.owner.key if batch.owner is not None else None
            count(key, "retained_messages")
            count(key, "retained_bytes", retained_size(batch))
    for row in log:
        user = row["payload"].rstrip(b"\0").decode()
        count(f"user:{user}", "stored_bytes", len(row["topic"].encode()) + len(row["payload"]))
    return {key: used for key, used in found.items() if any(used.values())}

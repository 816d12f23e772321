"""Questions about quotas: what users take of what all share, and how much they may."""

from __future__ import annotations

from math import inf

from pyrite.broker.access import Credentials
from pyrite.broker.accounts import QUOTAS, Account
from pyrite.broker.core import Broker
from pyrite.server.questions.pages import Entry, Page, PageTurns
from pyrite.server.questions.problem import Message, Part, Reply


class QuotaUsage:
    """Knows the accounts of users."""

    def __init__(self, broker: Broker, turns: PageTurns) -> None:
        self._broker = broker
        self._turns = turns

    def page(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Tell of some accounts, by name; to who may not see all clients, only of the caller's own."""
        broker = self._broker
        access, accounts = broker.access, broker.quotas.accounts
        if access.checks_topics and not access.may_admin(who, "#"):
            reply(Part([_about(broker.quotas.account_of(who))], b""))
            reply({"next": None})
            return

        def describe(key: str) -> Entry | None:
            account = accounts.get(key)
            return None if account is None else (_about(account), b"")

        page = Page(
            broker,
            broker.quotas.following,
            message["after"],
            message["limit"],
            describe,
            lambda last: reply({"next": last}),
            reply,
        )
        self._turns.add(who.asker, page.work)


def _about(account: Account) -> Message:
    messages, size = account.rate
    rates = {"message_rate": round(messages, 1), "byte_rate": round(size, 1)}
    quotas = {}
    for name in QUOTAS:
        limit = account.limits[name]
        used = rates[name] if name in rates else getattr(account, name)
        quotas[name] = {"used": used, "limit": None if limit == inf else limit}
    return {"user": account.user, "address": account.address, "quotas": quotas}

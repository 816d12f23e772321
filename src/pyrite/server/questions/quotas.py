"""Questions about quotas: what users take of what all share, and how much they may."""

from __future__ import annotations

from math import inf

from pyrite.broker.access import Credentials
from pyrite.broker.accounts import QUOTAS, Account
from pyrite.broker.core import Broker
from pyrite.server.questions.pages import Page
from pyrite.server.questions.problem import Message, Reply


class QuotaUsage:
    """Knows the accounts of users."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def page(self, who: Credentials, message: Message, reply: Reply) -> None:
        """Tell of some accounts, by name; to who may not see all clients, only of the caller's own."""
        broker = self._broker
        access, accounts = broker.access, broker.quotas.accounts
        if access.checks_topics and not access.may_admin(who, "#"):
            reply({"accounts": [_about(broker.quotas.account_of(who))], "next": None})
            return

        def found(page: list[str], more: bool) -> None:
            known = [_about(accounts[one]) for one in page if one in accounts]
            reply({"accounts": known, "next": page[-1] if more else None})

        wanted = accounts.__contains__
        Page(broker, broker.quotas.following, message["after"], message["limit"], wanted, found, reply)


def _about(account: Account) -> Message:
    messages, size = account.rate
    rates = {"message_rate": round(messages, 1), "byte_rate": round(size, 1)}
    quotas = {}
    for name in QUOTAS:
        limit = account.limits[name]
        used = rates[name] if name in rates else getattr(account, name)
        quotas[name] = {"used": used, "limit": None if limit == inf else limit}
    return {"user": account.user, "address": account.address, "quotas": quotas}

"""Requests about quotas: usage and limits of users."""

from __future__ import annotations

from math import inf

from pyrite.broker.access import Credentials
from pyrite.broker.accounts import QUOTAS, Account
from pyrite.broker.core import Broker
from pyrite.ipc.api.quotas import AccountInfo, AccountPage, ListQuotas, QuotaUse, QuotaUses
from pyrite.ipc.server import Call
from pyrite.server.api.pages import Entry, PageBuilder, PageTurns
from pyrite.server.gate import answers


class QuotaRequests:
    """Answers requests about the accounts of users."""

    def __init__(self, broker: Broker, turns: PageTurns) -> None:
        self._broker = broker
        self._turns = turns

    @answers(ListQuotas)
    def page(self, caller: Credentials, request: ListQuotas, call: Call[AccountPage]) -> None:
        """Return a page of accounts by name; without the right `admin` on `#`, only the caller's."""
        broker = self._broker
        accounts = broker.quotas.accounts
        if broker.policy.refuse_admin(caller) is not None:
            call.reply(AccountPage([_described(broker.quotas.account_of(caller))], None))
            return

        def describe(key: str) -> Entry | None:
            account = accounts.get(key)
            return None if account is None else (_described(account), 0)

        page = PageBuilder(
            broker, call, broker.quotas.following, request.after or None, request.limit, describe, AccountPage
        )
        self._turns.add(caller.asker, page.work)


def _described(account: Account) -> AccountInfo:
    messages, size = account.rate
    rates = {"message_rate": round(messages, 1), "byte_rate": round(size, 1)}
    quotas = {}
    for name in QUOTAS:
        limit = account.limits[name]
        used = rates[name] if name in rates else getattr(account, name)
        quotas[name] = QuotaUse(used, None if limit == inf else limit)
    return AccountInfo(account.user, account.address, QuotaUses(**quotas))

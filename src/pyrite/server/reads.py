"""Counts the reads of the log and the waiting pulls of each user over HTTP and Flight."""

from __future__ import annotations

from pyrite.broker.access import Credentials
from pyrite.broker.accounts import Account
from pyrite.broker.quotas import Quotas


class Reads:
    """Open reads, counted by user over all child processes."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._accounts: dict[tuple[object, int], Account] = {}
        """The account of each read, by child process and number of the request."""

    def begin(self, process: object, number: int, caller: Credentials) -> str:
        """Count a read; return an error text if the user's quota refuses it, otherwise ""."""
        account = self._quotas.account_of(caller)
        refusal = self._quotas.refusal(account, "concurrent_reads")
        if not refusal:
            account.concurrent_reads += 1
            self._accounts[process, number] = account
        return refusal

    def end(self, process: object, number: int) -> None:
        """Stop counting a read, if it was counted."""
        account = self._accounts.pop((process, number), None)
        if account is not None:
            account.concurrent_reads -= 1

    def end_all(self, process: object) -> None:
        """Stop counting the reads of a process that has ended."""
        for one, number in list(self._accounts):
            if one is process:
                self.end(one, number)

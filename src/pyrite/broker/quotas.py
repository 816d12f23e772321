"""Quotas: each user's limits on shared resources.

    [quotas.default]            each user without a more specific quota
    sessions = 1000
    [quotas.group.devices]      each member of a group
    message_rate = 10
    [quotas.user.ann]           one user
    sessions = "unlimited"

The most specific setting wins, key by key: user, group (the most generous of several), default. Without any,
one user may take half of each global limit. Users are known by name if names are authenticated. Clients
without a name, and all clients of a broker that lets everyone in, are counted by address; those on this
machine have no quota unless [quotas.default] sets one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from math import inf
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from pyrite.broker.access import Access, Credentials
from pyrite.broker.accounts import QUOTAS, Account
from pyrite.broker.attempts import network_of
from pyrite.broker.timers import NO_SLOT
from pyrite.process.endpoints import is_loopback

if TYPE_CHECKING:
    from pyrite.broker.core import Broker
    from pyrite.broker.session import Session

MAX_CONSUMERS = 10_000
"""Consumers of all users together."""
DEFAULT_READS = 100
"""Concurrent reads of a user without a setting."""
SWEEP_INTERVAL = 1.0
"""Seconds between two searches for idle accounts."""
MAX_SWEPT = 200
"""Accounts examined in one search."""
LOCAL = "unix"
"""The address of clients of a Unix socket."""


@dataclass(slots=True)
class Quota:
    """One table of [quotas]: numbers of at least 0 (rates: more than 0), or "unlimited"."""

    sessions: float | None = None
    """Sessions, connected or not."""
    connections: float | None = None
    """Clients connected at one time."""
    subscriptions: float | None = None
    """Subscriptions of all sessions together."""
    consumers: float | None = None
    """Consumers (pull)."""
    retained_messages: float | None = None
    """Retained messages."""
    retained_bytes: float | None = None
    """Bytes of retained messages: topics, payloads and properties."""
    stored_bytes: float | None = None
    """Bytes in the log."""
    message_rate: float | None = None
    """Messages per second that a user may publish."""
    byte_rate: float | None = None
    """Bytes per second that a user may publish."""
    concurrent_reads: float | None = None
    """Reads of the log and waiting pulls at one time, over HTTP and Flight."""


@dataclass(slots=True)
class QuotaOptions:
    """The [quotas] tables."""

    default: Quota = field(default_factory=Quota)
    """For each user, unless the user's own table or that of a group says otherwise."""
    user: dict[str, Quota] = field(default_factory=dict)
    """By user name."""
    group: dict[str, Quota] = field(default_factory=dict)
    """By group, for each of its members."""


assert tuple(one.name for one in fields(Quota)) == QUOTAS


class Quotas:
    """All accounts of a broker, and the quotas in force."""

    def __init__(self, broker: Broker, options: QuotaOptions) -> None:
        self._broker = broker
        self._options = options
        self.accounts: SortedDict[str, Account] = SortedDict()
        """By key, in order, for lists in pages."""
        self.max_connections = broker.limits.max_connections
        """The maximum number of connections, which the limit on open files may reduce."""
        self.slot = NO_SLOT
        self._swept = ""
        broker.timers.set(self, broker.now + SWEEP_INTERVAL)

    # Accounts

    def account_of(self, who: Credentials) -> Account:
        """Return the account of a client."""
        access = self._broker.access
        if who.username is None or type(access).authenticate is Access.authenticate:
            return self._account(f"address:{_network(who.address)}", frozenset())
        return self._account(f"user:{who.username}", who.groups)

    def restored(self, key: str | None) -> Account | None:
        """Return the account with a key from the stored state."""
        if key is None:
            return None
        known: Account | None = self.accounts.get(key)
        return known or self._account(key, frozenset())

    def kept(self, account: Account | None) -> Account | None:
        """Return an account that is about to be used: it may have been forgotten meanwhile."""
        return None if account is None else self.accounts.setdefault(account.key, account)

    def _account(self, key: str, groups: frozenset[str]) -> Account:
        account: Account | None = self.accounts.get(key)
        if account is None:
            account = self.accounts[key] = Account(self._broker, key, groups)
            account.set_limits(self._limits_of(account))
        elif account.groups != groups:
            account.groups = groups
            account.set_limits(self._limits_of(account))
        return account

    # Quotas in force

    def replace(self, options: QuotaOptions) -> None:
        """Replace the quotas of all accounts at once."""
        self._options = options
        self.access_changed()

    def access_changed(self) -> None:
        """Determine all quotas again, in turns: users may have changed groups."""
        self._broker.turns.work_through(self._renew())

    def _renew(self) -> Iterator[None]:
        for account in list(self.accounts.values()):
            yield
            account.set_limits(self._limits_of(account))
        for session in list(self._broker.sessions.by_id.values()):
            yield
            if session.link is not None and session.account is not None:
                session.link.meter = session.account.meter

    def _limits_of(self, account: Account) -> dict[str, float]:
        options = self._options
        own, members_of = None, frozenset[str]()
        if account.user is not None:
            own = options.user.get(account.user)
            who = Credentials("", account.user, None, "", groups=account.groups)
            members_of = self._broker.access.groups_of(who)
        groups = [options.group[one] for one in sorted(members_of) if one in options.group]
        shares = self._shares(account)
        found: dict[str, float] = {}
        for name in QUOTAS:
            value: float | None = None if own is None else getattr(own, name)
            if value is None:
                values = [getattr(one, name) for one in groups if getattr(one, name) is not None]
                value = max(values, default=None)
            if value is None:
                value = getattr(options.default, name)
            found[name] = shares.get(name, inf) if value is None else value
        return found

    def _shares(self, account: Account) -> dict[str, float]:
        """Return the quotas of an account without settings: half of each global limit."""
        reads: dict[str, float] = {"concurrent_reads": DEFAULT_READS}
        if account.address is not None and (account.address == LOCAL or is_loopback(account.address)):
            return reads
        limits = self._broker.limits
        in_all = {
            "sessions": limits.max_sessions,
            "connections": self.max_connections,
            "consumers": MAX_CONSUMERS,
            "retained_messages": limits.max_retained_messages,
            "retained_bytes": limits.retained_bytes,
        }
        return reads | {name: max(1, number // 2) for name, number in in_all.items()}

    # Refusals

    def session_refusal(self, account: Account, client_id: str) -> str:
        """Return why a client may not connect with an id; empty if it may."""
        broker = self._broker
        session = broker.sessions.by_id.get(client_id)
        if session is None and len(broker.sessions.by_id) >= broker.limits.max_sessions:
            refusal = "too many sessions"
        else:
            owned = session is not None and session.account is account
            connected = session is not None and owned and session.link is not None
            refusal = "" if owned else account.refusal("sessions")
            if not refusal and session is not None and not owned:
                refusal = account.refusal("subscriptions", len(session.subscriptions))
            if not refusal and not connected:
                refusal = account.refusal("connections")
        if refusal:
            broker.figures.quota_refused += 1
        return refusal

    def refusal(self, account: Account | None, name: str, more: int = 1) -> str:
        """Return why an account may not have `more` of a quota, and count the refusal; empty if it may."""
        refusal = "" if account is None else account.refusal(name, more)
        if refusal:
            self._broker.figures.quota_refused += 1
        return refusal

    # Owners

    def own(self, session: Session, account: Account | None) -> None:
        """Move a session with its subscriptions from its present account to another."""
        before, account = session.account, self.kept(account)
        if before is account:
            return
        connected = session.link is not None
        for one, sign in ((before, -1), (account, 1)):
            if one is not None:
                one.sessions += sign
                one.subscriptions += sign * len(session.subscriptions)
                one.connections += sign * connected
        session.account = account
        if session.link is not None:
            session.link.meter = None if account is None else account.meter

    def following(self, after: str | None) -> Iterator[str]:
        """Yield the keys of the accounts after one, or of all accounts, in order."""
        keys: Iterator[str] = self.accounts.irange(after, None, (False, True))
        return keys

    def due(self) -> None:
        """Forget some idle accounts, and subtract messages that retention has dropped."""
        looked_at = 0
        idle = []
        for key in self.accounts.irange(self._swept, None, (False, True)):
            looked_at += 1
            account = self.accounts[key]
            account.release_dropped()
            if account.is_idle:
                idle.append(key)
            if looked_at == MAX_SWEPT:
                break
        self._swept = key if looked_at == MAX_SWEPT else ""
        for key in idle:
            self._broker.timers.cancel(self.accounts[key])
            del self.accounts[key]
        self._broker.timers.set(self, self._broker.now + SWEEP_INTERVAL)


def _network(address: str) -> str:
    """Return the network of an address: an IPv6 client has many addresses."""
    return address if is_loopback(address) else network_of(address)

"""The interface of an authenticator: which clients may connect, and their rights.

The broker asks an `Access` object. The one in this module lets everyone in; pyrite.toml names a plug-in:

    [mqtt]
    authenticator = "my_package.my_module:make_access"

`make_access()` returns an object of a subclass of `Access`. Calls are made on the event loop and must not
block, except for `authenticate`, which runs in a thread if `takes_time` returns True.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyrite.process.fair import Asker

NOT_AUTHORIZED = 0x87
BAD_USER_NAME_OR_PASSWORD = 0x86
BANNED = 0x8A
BAD_AUTHENTICATION_METHOD = 0x8C
SERVER_BUSY = 0x89
CONNECTION_RATE_EXCEEDED = 0x9F
UNSPECIFIED = 0x80
IDENTITY_REFUSALS = (BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED, BANNED, BAD_AUTHENTICATION_METHOD)
"""Reason codes about the client's identity. Each counts as a failed log-in."""


@dataclass(slots=True)
class Credentials:
    """What a connecting client has presented, and its identity once accepted."""

    client_id: str
    username: str | None
    password: bytes | None = field(repr=False)
    address: str
    certificate: str | None = None
    """The name in the client's certificate, if certificates provide names."""
    groups: frozenset[str] = frozenset()
    """The groups from the client's token; groups of the file of users are found by name."""
    proof: object = None
    """The proof that the plug-in accepted, such as the hash of the password."""
    is_accepted: bool = False
    """Whether the client has logged in."""

    @property
    def silent(self) -> bool:
        """Whether the client has given no name, password or certificate."""
        return self.username is None and self.password is None and self.certificate is None

    @property
    def asker(self) -> Asker:
        """The user for whom work is done; without a name, the address."""
        user = f"address {self.address}" if self.username is None else f"user {self.username}"
        return Asker(user, self.client_id)

    def become(self, verdict: Accept) -> None:
        """Take the identity that the client was accepted with, and forget its password."""
        self.username, self.groups, self.proof = verdict.username, verdict.groups, verdict.proof
        self.password = None
        self.is_accepted = True


@dataclass(frozen=True, slots=True)
class Accept:
    """Accept the client as `username`; `data` is returned as authentication data.

    `seconds` limits the duration of the connection. The client's credentials keep `groups` and `proof`.
    `proof` is any value that is not secret, from which `is_welcome` can later tell whether the client
    would still be accepted.
    """

    data: bytes | None = None
    username: str | None = None
    seconds: float | None = None
    groups: frozenset[str] = frozenset()
    proof: object = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse the client, with an MQTT 5 reason code and a text for the client's developer.

    The client may try again after `seconds`.
    """

    code: int = NOT_AUTHORIZED
    reason: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Challenge:
    """Ask the client for more (enhanced authentication): `data` is the challenge."""

    data: bytes | None = None


class Exchange:
    """One client's enhanced authentication in progress."""

    def step(self, data: bytes | None) -> Accept | Refuse | Challenge:
        """Answer what the client sent: accept, refuse, or ask for more."""
        raise NotImplementedError


class Access:
    """Lets everyone do everything. Subclasses override what they restrict."""

    checks_topics = False
    """Whether the broker must ask `may_publish` and `may_subscribe` at all."""
    tells_of_changes = False
    """Whether rights change only with a call of `Broker.access_changed`."""
    limits_log_ins = True
    """Whether the broker locks out clients after too many failures; False if the plug-in does that itself."""

    @property
    def lets_everyone_in(self) -> bool:
        """Whether clients need not log in."""
        return type(self).authenticate is Access.authenticate

    def takes_time(self, credentials: Credentials) -> bool:
        """Return whether `authenticate` is slow and must run in a thread.

        Must be False for a client without credentials.
        """
        return False

    def authenticate(self, credentials: Credentials) -> Accept | Refuse:
        """Decide on a client that connects without enhanced authentication."""
        return Accept(username=credentials.username)

    def begin(self, method: str, credentials: Credentials) -> Exchange | None:
        """Begin enhanced authentication by `method`; return None for an unknown method."""
        return None

    def is_welcome(self, credentials: Credentials) -> bool:
        """Return whether an accepted client may stay after the settings were reloaded."""
        return True

    def groups_of(self, credentials: Credentials) -> frozenset[str]:
        """Return all groups of the client, for the quotas of groups."""
        return credentials.groups

    def may_within(self, action: str, credentials: Credentials, topic_filter: str) -> bool:
        """Return whether the client has a right (publish, pull, ...) on any topic of a filter.

        Return True if that is unknown. The broker asks before it knows the topic, so that a client without
        the right causes no work.
        """
        return True

    def may_publish(self, credentials: Credentials, topic: str) -> bool:
        """Return whether the client may publish on `topic`."""
        return True

    def may_subscribe(self, credentials: Credentials, topic_filter: str) -> bool:
        """Return whether the client may subscribe to `topic_filter`, or list its topics."""
        return True

    def may_pull(self, credentials: Credentials, topic_filter: str) -> bool:
        """Return whether the client may read `topic_filter` from the log: pull, bulk read, or replay."""
        return self.may_subscribe(credentials, topic_filter)

    def may_admin(self, credentials: Credentials, topic_filter: str) -> bool:
        """Return whether the client may create and delete topics, and see the connected clients."""
        return self.may_publish(credentials, topic_filter)

"""Who may connect, and what they may do: the interface that an authenticator implements.

The broker asks an `Access` object. The one here lets everyone in; a plug-in names its own in pyrite.toml:

    [mqtt]
    authenticator = "my_package.my_module:make_access"

where `make_access()` returns an object of a subclass of `Access`. Calls are made on the event loop, so they
must not block; but for `authenticate`, which is called in a thread of its own if `takes_time` says so.
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
WHO_IT_IS = (BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED, BANNED, BAD_AUTHENTICATION_METHOD)
"""Reason codes that concern the client's identity. Each counts as a failed log-in."""


@dataclass(slots=True)
class Credentials:
    """What a connecting client has presented, and its identity once it is accepted."""

    client_id: str
    username: str | None
    password: bytes | None = field(repr=False)
    address: str
    certificate: str | None = None
    """The name in the client's certificate, if names are taken from there."""
    groups: frozenset[str] = frozenset()
    """The groups from the client's token; those in the file of users are known by its name."""
    proof: object = None
    """The proof that the access plug-in accepted, such as the hash of the password."""
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
    """Accept the client as `username`; `data` is sent along as authentication data.

    `seconds` limits how long it may stay. `groups` and `proof` are stored in its credentials: `proof` is any
    value, but no secret, from which `is_welcome` can tell later whether the client would still be accepted.
    """

    data: bytes | None = None
    username: str | None = None
    seconds: float | None = None
    groups: frozenset[str] = frozenset()
    proof: object = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse the client, with an MQTT 5 reason code and a text for the client's developer.

    `seconds` is the time after which it may try again.
    """

    code: int = NOT_AUTHORIZED
    reason: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Challenge:
    """Ask the client for more (enhanced authentication): `data` is the challenge."""

    data: bytes | None = None


class Exchange:
    """One enhanced authentication under way, of the client that began it."""

    def step(self, data: bytes | None) -> Accept | Refuse | Challenge:
        """Answer what the client sent: accept, refuse, or ask for more."""
        raise NotImplementedError


class Access:
    """Lets everyone do everything. Subclass it and override what should be otherwise."""

    checks_topics = False
    """Whether `may_publish` and `may_subscribe` are to be asked at all."""
    tells_of_changes = False
    """Whether what clients may do changes only when the broker is told (`Broker.access_changed`)."""
    limits_log_ins = True
    """Whether the broker refuses clients that failed too often; not if the plug-in does that itself."""

    @property
    def lets_everyone_in(self) -> bool:
        """Whether no client has to log in."""
        return type(self).authenticate is Access.authenticate

    def takes_time(self, credentials: Credentials) -> bool:
        """Return whether `authenticate` will take long: then it is called in a thread of its own.

        It must not for a client that presents nothing.
        """
        return False

    def authenticate(self, credentials: Credentials) -> Accept | Refuse:
        """Decide on a client that connects without enhanced authentication."""
        return Accept(username=credentials.username)

    def begin(self, method: str, credentials: Credentials) -> Exchange | None:
        """Begin enhanced authentication by `method`, or return None if there is no such method."""
        return None

    def is_welcome(self, credentials: Credentials) -> bool:
        """Return whether an accepted client may stay, after the settings were read again."""
        return True

    def groups_of(self, credentials: Credentials) -> frozenset[str]:
        """Return all groups of the client, for the quotas of groups."""
        return credentials.groups

    def may_within(self, action: str, credentials: Credentials, topic_filter: str) -> bool:
        """Return whether the client has a right (publish, pull, ...) on any topic of a filter.

        Return True if that is not known. The broker asks before it knows the topic, so that it does no work
        for a client without the right.
        """
        return True

    def may_publish(self, credentials: Credentials, topic: str) -> bool:
        """Return whether the client may publish on `topic`."""
        return True

    def may_subscribe(self, credentials: Credentials, topic_filter: str) -> bool:
        """Return whether the client may subscribe to `topic_filter`, or list the topics there."""
        return True

    def may_pull(self, credentials: Credentials, topic_filter: str) -> bool:
        """Return whether the client may read `topic_filter` from the log: by pull, in bulk, or by subscribing
        to the past."""
        return self.may_subscribe(credentials, topic_filter)

    def may_admin(self, credentials: Credentials, topic_filter: str) -> bool:
        """Return whether the client may create and delete topics, and see who is connected."""
        return self.may_publish(credentials, topic_filter)

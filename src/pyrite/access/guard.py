"""The access list: users with passwords, tokens, certificates, and rules on topics."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pyrite.access.rules import Rule, Rules
from pyrite.access.tokens import Tokens
from pyrite.access.users import User, stand_in, verify
from pyrite.broker.access import (
    BAD_USER_NAME_OR_PASSWORD,
    NOT_AUTHORIZED,
    Accept,
    Access,
    Credentials,
    Refuse,
)

MAX_CACHED_DECISIONS = 100_000
MAX_CACHED_LENGTH = 256
"""Maximum characters of the names and topic of a cached decision."""


class Guard(Access):
    """Authenticates users of the access list, and denies what no rule allows."""

    checks_topics = True
    tells_of_changes = True

    def __init__(
        self, users: Mapping[str, User], rules: Sequence[Rule], anonymous: bool, tokens: Tokens | None = None
    ) -> None:
        self.replace(users, rules, anonymous, tokens)

    def replace(
        self, users: Mapping[str, User], rules: Sequence[Rule], anonymous: bool, tokens: Tokens | None
    ) -> None:
        """Use another access list from now on."""
        self._users = users
        self._hashes = [user.hashed for user in users.values()]
        self._tokens = tokens
        self._rules = Rules(rules)
        self._anonymous = anonymous
        self._decisions: dict[tuple[str, str | None, frozenset[str], str, str], bool] = {}

    def is_welcome(self, credentials: Credentials) -> bool:
        """Return True if the credentials that a client was authenticated with are still valid."""
        name, proof = credentials.username, credentials.proof
        if name is None:
            return self._anonymous
        if credentials.certificate is not None:
            return name == credentials.certificate
        user = self._users.get(name)
        if user is not None and user.hashed == proof:
            return True
        return self._tokens is not None and proof in self._tokens.proofs

    def takes_time(self, credentials: Credentials) -> bool:
        """Return True for passwords: hashing them is slow on purpose."""
        if credentials.certificate is not None:
            return False
        return credentials.username is not None or credentials.password is not None

    def authenticate(self, credentials: Credentials) -> Accept | Refuse:
        """Accept a client with a certificate, password or token; or an anonymous one, if allowed."""
        if credentials.certificate is not None:
            if credentials.username not in (None, "", credentials.certificate):
                return Refuse(BAD_USER_NAME_OR_PASSWORD, "the certificate belongs to another user")
            return Accept(username=credentials.certificate)
        if credentials.username is None and credentials.password is None:
            if self._anonymous:
                return Accept()
            return Refuse(NOT_AUTHORIZED, "a user name and password are required")
        found = self._checked(credentials.username, credentials.password or b"")
        return found or Refuse(BAD_USER_NAME_OR_PASSWORD, "wrong user name or password")

    def _checked(self, username: str | None, password: bytes) -> Accept | None:
        """Check a token or password; return None if it is wrong."""
        bearer = self._tokens.check(password) if self._tokens is not None else None
        if bearer is not None:
            if username not in (None, "", bearer.name):
                return None
            seconds = max(0.0, bearer.until - time.time())
            return Accept(username=bearer.name, seconds=seconds, groups=bearer.groups, proof=bearer.proof)
        user = self._users.get(username or "")
        good = verify(self._stand_in(username) if user is None else user.hashed, password)
        return Accept(username=username, proof=user.hashed) if good and user is not None else None

    def _stand_in(self, name: str | None) -> str:
        """Return a hash to check the password of an unknown user with.

        It is another user's hash, so that the check takes as long as for known users.
        """
        return self._hashes[hash(name) % len(self._hashes)] if self._hashes else stand_in()

    def may_within(self, action: str, credentials: Credentials, topic_filter: str) -> bool:
        name = credentials.username
        return self._rules.overlap(
            action, name, self.groups_of(credentials), credentials.client_id, topic_filter.encode()
        )

    def may_publish(self, credentials: Credentials, topic: str) -> bool:
        return self._may("publish", credentials, topic)

    def may_subscribe(self, credentials: Credentials, topic_filter: str) -> bool:
        return self._may("subscribe", credentials, topic_filter)

    def may_pull(self, credentials: Credentials, topic_filter: str) -> bool:
        return self._may("pull", credentials, topic_filter)

    def may_admin(self, credentials: Credentials, topic_filter: str) -> bool:
        return self._may("admin", credentials, topic_filter)

    def groups_of(self, credentials: Credentials) -> frozenset[str]:
        """Return the groups of a client: those in its token, and those in the users file."""
        user = self._users.get(credentials.username) if credentials.username is not None else None
        return credentials.groups | (user.groups if user is not None else frozenset())

    def _may(self, action: str, credentials: Credentials, topic_filter: str) -> bool:
        name = credentials.username
        key = (action, name, credentials.groups, credentials.client_id, topic_filter)
        allowed = self._decisions.get(key)
        if allowed is None:
            groups = self.groups_of(credentials)
            allowed = self._rules.allows(action, name, groups, credentials.client_id, topic_filter.encode())
            if len(topic_filter) + len(name or "") + len(credentials.client_id) <= MAX_CACHED_LENGTH:
                if len(self._decisions) >= MAX_CACHED_DECISIONS:
                    self._decisions.clear()
                self._decisions[key] = allowed
        return allowed

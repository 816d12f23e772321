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

CACHED = 100_000
SHORT = 256
"""Answers that are remembered, and how many characters the names and topics have that they are about."""


class Guard(Access):
    """Lets in who knows the password, and each do what the rules say; all else is denied."""

    checks_topics = True
    tells_of_changes = True

    def __init__(
        self, users: Mapping[str, User], rules: Sequence[Rule], anonymous: bool, tokens: Tokens | None = None
    ) -> None:
        self.replace(users, rules, anonymous, tokens)

    def replace(
        self, users: Mapping[str, User], rules: Sequence[Rule], anonymous: bool, tokens: Tokens | None
    ) -> None:
        """Have another list in force from now on."""
        self._users = users
        self._hashes = [user.hashed for user in users.values()]
        self._tokens = tokens
        self._rules = Rules(rules)
        self._anonymous = anonymous
        self._answers: dict[tuple[str, str | None, frozenset[str], str, str], bool] = {}

    def is_welcome(self, credentials: Credentials) -> bool:
        """Tell whether what a client was let in for still holds: the password's hash, or the token's key."""
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
        """Tell that checking a password takes time, on purpose."""
        if credentials.certificate is not None:
            return False
        return credentials.username is not None or credentials.password is not None

    def authenticate(self, credentials: Credentials) -> Accept | Refuse:
        """Let a client in that knows the password of a user, has shown a certificate, or needs none."""
        if credentials.certificate is not None:
            if credentials.username not in (None, "", credentials.certificate):
                return Refuse(BAD_USER_NAME_OR_PASSWORD, "the certificate is another user's")
            return Accept(username=credentials.certificate)
        if credentials.username is None and credentials.password is None:
            if self._anonymous:
                return Accept()
            return Refuse(NOT_AUTHORIZED, "a user name and password are needed here")
        found = self._checked(credentials.username, credentials.password or b"")
        return found or Refuse(BAD_USER_NAME_OR_PASSWORD, "the user name or the password is wrong")

    def _checked(self, username: str | None, password: bytes) -> Accept | None:
        """Return under which name, and for how long, someone may come in; None if there is no reason to."""
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
        """Return the hash that passwords of an unknown user are checked against.

        It is another user's, so that the check costs what it costs for users, whatever their hashes cost.
        """
        return self._hashes[hash(name) % len(self._hashes)] if self._hashes else stand_in()

    def may_within(self, action: str, credentials: Credentials, topic_filter: str) -> bool:
        """Tell whether a client may do something on any topic of a filter."""
        name = credentials.username
        return self._rules.overlap(
            action, name, self.groups_of(credentials), credentials.client_id, topic_filter.encode()
        )

    def may_publish(self, credentials: Credentials, topic: str) -> bool:
        """Tell whether a client may publish on a topic."""
        return self._may("publish", credentials, topic)

    def may_subscribe(self, credentials: Credentials, topic_filter: str) -> bool:
        """Tell whether a client may subscribe to a filter."""
        return self._may("subscribe", credentials, topic_filter)

    def may_pull(self, credentials: Credentials, topic_filter: str) -> bool:
        """Tell whether a client may read a filter from the log."""
        return self._may("pull", credentials, topic_filter)

    def may_admin(self, credentials: Credentials, topic_filter: str) -> bool:
        """Tell whether a client may create and delete topics."""
        return self._may("admin", credentials, topic_filter)

    def groups_of(self, credentials: Credentials) -> frozenset[str]:
        """Return the groups of a client: those of its token, and those of the file of users."""
        user = self._users.get(credentials.username) if credentials.username is not None else None
        return credentials.groups | (user.groups if user is not None else frozenset())

    def _may(self, action: str, credentials: Credentials, topic_filter: str) -> bool:
        name = credentials.username
        key = (action, name, credentials.groups, credentials.client_id, topic_filter)
        known = self._answers.get(key)
        if known is None:
            groups = self.groups_of(credentials)
            known = self._rules.allows(action, name, groups, credentials.client_id, topic_filter.encode())
            if len(topic_filter) + len(name or "") + len(credentials.client_id) <= SHORT:
                if len(self._answers) >= CACHED:
                    self._answers.clear()
                self._answers[key] = known
        return known

"""Reads the files of the access list."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pyrite.access.options import AccessOptions
from pyrite.access.rules import Rule
from pyrite.access.tokens import Tokens
from pyrite.access.users import User, read_users


class AccessList(NamedTuple):
    """The arguments of a Guard."""

    users: dict[str, User]
    rules: list[Rule]
    anonymous: bool
    tokens: Tokens | None


def read_list(options: AccessOptions) -> AccessList:
    """Read the files; raise AccessError if one is missing or invalid."""
    tokens = None
    if options.jwt_keys:
        tokens = Tokens(
            Path(options.jwt_keys),
            options.jwt_audience,
            options.jwt_issuer,
            options.jwt_user,
            options.jwt_groups,
        )
    users = read_users(Path(options.users)) if options.users else {}
    return AccessList(users, options.rule, options.anonymous, tokens)

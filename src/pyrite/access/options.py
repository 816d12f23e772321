"""What may be set of who may come in, and do what."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyrite.access.rules import Rule
from pyrite.errors import PyriteError


class AccessError(PyriteError):
    """A file of users or keys is invalid, or the name of a user or group is."""


@dataclass(slots=True)
class AccessOptions:
    """Who may come in, and do what."""

    users: str = ""
    """File of users and their passwords, as `pyrite passwd` writes it; without one, everyone is let in."""
    anonymous: bool = False
    """Whether clients without a name are let in: where there are users, or where others can reach it."""
    jwt_keys: str = ""
    """File with keys (JWKS); a token that was signed with one of them does as a password, and as a name."""
    jwt_audience: str = ""
    """What tokens must be meant for (aud); empty for anything."""
    jwt_issuer: str = ""
    """Who must have issued them (iss); empty for anyone."""
    jwt_user: str = "sub"
    """The claim that names the user."""
    jwt_groups: str = "groups"
    """The claim that lists the groups of the user."""
    rule: list[Rule] = field(default_factory=list)
    """Who may do what; where there are users or rules, all else is denied."""

    @property
    def in_use(self) -> bool:
        """Whether there is an access list at all."""
        return bool(self.users or self.jwt_keys or self.rule)

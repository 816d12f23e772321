"""The [access] table of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyrite.access.rules import Rule
from pyrite.errors import PyriteError


class AccessError(PyriteError):
    """A file of users or keys is invalid, or the name of a user or group is."""


@dataclass(slots=True)
class AccessOptions:
    """The [access] table."""

    users: str = ""
    """File of users and password hashes, written by `pyrite passwd`; without one, anyone may connect."""
    anonymous: bool = False
    """Accept clients without a user name, even if there are users or other machines can connect."""
    jwt_keys: str = ""
    """File with keys (JWKS); a token signed with one of them replaces user name and password."""
    jwt_audience: str = ""
    """The audience (aud) that tokens must name; empty for any."""
    jwt_issuer: str = ""
    """The issuer (iss) that tokens must name; empty for any."""
    jwt_user: str = "sub"
    """The claim with the user name."""
    jwt_groups: str = "groups"
    """The claim with the list of the user's groups."""
    rule: list[Rule] = field(default_factory=list)
    """What users may do; with users or rules, everything else is denied."""

    @property
    def in_use(self) -> bool:
        """True if there is an access list."""
        return bool(self.users or self.jwt_keys or self.rule)

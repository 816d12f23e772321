"""Tokens (JWT) instead of passwords, signed with the keys in a file (JWKS)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from pyrite.access.options import AccessError

LEEWAY = 5.0
"""Maximum difference of clocks, in seconds."""
MIN_SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Minimum length of secrets (RFC 7518, 3.2); shorter ones can be guessed with the help of a token."""


@dataclass(frozen=True)
class Bearer:
    """The contents of a valid token."""

    name: str
    groups: frozenset[str]
    until: float
    """Expiry, in seconds since 1970."""
    proof: str
    """A digest of the key and of the requirements that the token was checked with."""


class Tokens:
    """Checks tokens: signed with the named key (HS, RS, PS, ES or EdDSA), and not expired."""

    def __init__(self, path: Path, audience: str, issuer: str, user_claim: str, groups_claim: str) -> None:
        try:
            import jwt
        except ImportError:
            raise AccessError("access.jwt_keys: tokens need PyJWT: pip install 'pyrite[jwt]'") from None
        self._jwt = jwt
        try:
            text = path.read_text(encoding="utf-8")
            keys = jwt.PyJWKSet.from_dict(_object(text))
        except OSError as error:
            raise AccessError(f"{path}: {error.strerror}") from None
        except (ValueError, RecursionError, jwt.PyJWTError) as error:
            raise AccessError(f"{path}: expected a set of keys (JWKS): {error}") from None
        self._keys = {key.key_id: key for key in keys.keys}
        self._only = keys.keys[0] if len(keys.keys) == 1 else None
        if len(self._keys) < len(keys.keys) or (self._only is None and None in self._keys):
            raise AccessError(f"{path}: expected a distinct name (kid) for each key")
        for key in keys.keys:
            least = MIN_SECRET_BYTES.get(key.algorithm_name, 0)
            if isinstance(key.key, bytes) and len(key.key) < least:
                raise AccessError(
                    f"{path}: the key {key.key_id!r} has {len(key.key)} bytes and could be guessed: "
                    f"{key.algorithm_name} needs at least {least}"
                )
        asked = (audience, issuer, user_claim)
        self._proofs = {key.key_id: _digest(text, key.key_id, asked) for key in keys.keys}
        self.proofs = frozenset(self._proofs.values())
        """The `proof` of all tokens that are valid."""
        self._audience = audience or None
        self._issuer = issuer or None
        self._user_claim = user_claim
        self._groups_claim = groups_claim

    def check(self, token: bytes) -> Bearer | None:
        """Return the contents of a token; None if it is invalid."""
        try:
            name = self._jwt.get_unverified_header(token).get("kid")
            key = self._keys.get(name) if name is not None else self._only
            if key is None:
                return None
            claims: dict[str, Any] = self._jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm_name],
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY,
                options={"require": ["exp", self._user_claim], "verify_aud": self._audience is not None},
            )
            until = float(claims["exp"]) + LEEWAY
        except (self._jwt.PyJWTError, ValueError, OverflowError):
            return None
        user, groups = claims[self._user_claim], claims.get(self._groups_claim, [])
        if not _is_name(user) or not isinstance(groups, list):
            return None
        return Bearer(user, frozenset(map(str, groups)), until, self._proofs[key.key_id])


def _object(text: str) -> dict[str, Any]:
    """Parse a set of keys; raise ValueError if it is invalid."""
    found = json.loads(text)
    if not isinstance(found, dict) or "keys" not in found:
        raise ValueError('expected {"keys": [...]}')
    for key in found["keys"] if isinstance(found["keys"], list) else ():
        if isinstance(key, dict) and not isinstance(key.get("kid"), str | None):
            raise ValueError(f"expected a text as the name of a key (kid), not {key['kid']!r}")
    return found


def _is_name(value: object) -> TypeGuard[str]:
    """Return True if a claim is a possible user name, which UTF-8 can encode."""
    return isinstance(value, str) and bool(value) and value.encode("utf-8", "ignore").decode() == value


def _digest(keys: str, name: str | None, asked: tuple[str, ...]) -> str:
    """Return a digest that identifies a key and the requirements, without revealing the key."""
    key = [one for one in json.loads(keys)["keys"] if isinstance(one, dict) and one.get("kid") == name]
    return hashlib.sha256(json.dumps([key, asked], sort_keys=True).encode()).hexdigest()

"""Cheap password hashes, for tests about something else."""

from __future__ import annotations

from argon2 import PasswordHasher

_quick = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def quick_hash(password: str) -> str:
    """Return a password hash for a file of users; its own parameters make it cheap to check."""
    return _quick.hash(password)

"""Passwords that are checked quickly: for tests that are about something else."""

from __future__ import annotations

from argon2 import PasswordHasher

_quick = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def quick_hash(password: str) -> str:
    """Return what a file of users has for a password. The hash itself says how little it costs."""
    return _quick.hash(password)

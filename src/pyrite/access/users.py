"""The users file: one line per user, `name:hash:group,group`, with argon2 hashes. See `pyrite passwd`."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from pyrite.access.options import AccessError
from pyrite.access.rules import ANONYMOUS, EVERYONE

NAME = re.compile(r"[^\s:,#%+/$\x00-\x1f][^\s:,#%+/\x00-\x1f]{0,127}")
"""Names of users and groups: without characters that have a meaning in topic filters or in the file."""
HASH = re.compile(r"\$argon2(id|i|d)(\$v=\d+)?\$m=\d+,t=\d+,p=\d+\$[A-Za-z0-9+/]{11,}\$[A-Za-z0-9+/]{6,}")
"""An argon2 hash: variant, cost, salt, and digest."""

_hasher = PasswordHasher()


@cache
def stand_in() -> str:
    """Return a hash to check passwords with if there are no users."""
    return _hasher.hash("")


@dataclass(frozen=True)
class User:
    """A user with a password."""

    name: str
    hashed: str
    groups: frozenset[str] = frozenset()


def check_name(kind: str, name: str) -> str:
    """Return a valid name of a user or group; raise AccessError for an invalid one."""
    if kind == "user" and name in (ANONYMOUS, EVERYONE):
        raise AccessError(f"user {name!r}: reserved in access.rule; expected another name")
    if not NAME.fullmatch(name):
        raise AccessError(
            f"{kind} {name!r}: expected up to 128 characters, none of them a space or one of : , # % + / $"
        )
    return name


def hash_password(password: str) -> str:
    """Return the hash of a password."""
    return _hasher.hash(password)


def verify(hashed: str, password: bytes) -> bool:
    """Return True if a hash belongs to this password. Slow on purpose."""
    try:
        return _hasher.verify(hashed, password)
    except (Argon2Error, InvalidHashError):
        return False


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise AccessError(f"{path}: {reason}") from None


def _is_comment(line: str) -> bool:
    """Return True for an empty line or a comment."""
    return not line.strip() or line.startswith("#")


def read_users(path: Path) -> dict[str, User]:
    """Read a users file; AccessError names an invalid line."""
    users: dict[str, User] = {}
    for number, line in enumerate(_lines(path), 1):
        if _is_comment(line):
            continue
        parts = line.split(":")
        if len(parts) not in (2, 3) or not parts[1].startswith("$argon2"):
            raise AccessError(
                f"{path}, line {number}: expected name:hash or name:hash:groups, as written by pyrite passwd"
            )
        try:
            name = check_name("user", parts[0])
            groups = (
                frozenset(check_name("group", one) for one in parts[2].split(",") if one)
                if parts[2:]
                else frozenset()
            )
        except AccessError as wrong:
            raise AccessError(f"{path}, line {number}: {wrong}") from None
        if name in users:
            raise AccessError(f"{path}, line {number}: duplicate user {name!r}")
        if not HASH.fullmatch(parts[1]):
            raise AccessError(
                f"{path}, line {number}: invalid argon2 hash of user {name!r}; pyrite passwd creates one"
            )
        users[name] = User(name, parts[1], groups)
    return users


@contextmanager
def users_to_change(path: Path) -> Iterator[dict[str, User]]:
    """Yield the users of a file to change them, and write them at the end. A missing file has no users.

    The folder is locked meanwhile, so that simultaneous changes are not lost.
    """
    path = Path(os.path.realpath(path))  # the file a link points to
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # not the file, which is replaced
        users = read_users(path) if path.exists() else {}
        yield users
        write_users(path, users.values())
    finally:
        os.close(folder)


def write_users(path: Path, users: Iterable[User]) -> None:
    """Replace a users file atomically, keeping its owner, mode and comments; a new file has mode 0600."""
    left = {one.name: f"{one.name}:{one.hashed}:{','.join(sorted(one.groups))}" for one in users}
    lines: list[str] = []
    try:
        before = path.stat()
    except FileNotFoundError:
        before = None
    else:
        for line in _lines(path):
            name = line.partition(":")[0]
            if _is_comment(line):
                lines.append(line)
            elif name in left:
                lines.append(left.pop(name))
    lines += left.values()
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)  # may be left over, with any owner
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            if before is not None:
                _copy_owner(file.fileno(), before, path)
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _copy_owner(descriptor: int, before: os.stat_result, path: Path) -> None:
    """Give a file the owner, group and mode of the file it replaces, so that services can still read it."""
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(descriptor, before.st_uid, before.st_gid)
        except PermissionError:
            raise AccessError(
                f"{path}: belongs to user {before.st_uid} and group {before.st_gid}, which only root can "
                "preserve; nothing was changed"
            ) from None
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))

"""The file of users, a line each: `name:hash:group,group`; hashes are argon2's. `pyrite passwd` writes it."""

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
"""What a user or a group may be called: nothing that means something in a topic filter, or in the file."""
HASH = re.compile(r"\$argon2(id|i|d)(\$v=\d+)?\$m=\d+,t=\d+,p=\d+\$[A-Za-z0-9+/]{11,}\$[A-Za-z0-9+/]{6,}")
"""What is kept of a password: the kind of argon2, what it costs, the salt, and the hash."""

_hasher = PasswordHasher()


@cache
def stand_in() -> str:
    """Return a hash to check passwords of unknown users against, where there is no user at all."""
    return _hasher.hash("")


@dataclass(frozen=True)
class User:
    """Someone with a password."""

    name: str
    hashed: str
    groups: frozenset[str] = frozenset()


def check_name(kind: str, name: str) -> str:
    """Return a name that a user or a group may have; AccessError if it may not."""
    if kind == "user" and name in (ANONYMOUS, EVERYONE):
        raise AccessError(f"user {name!r}: stands for others in access.rule; expected another name")
    if not NAME.fullmatch(name):
        raise AccessError(
            f"{kind} {name!r}: expected up to 128 characters, none of them a space or one of : , # % + / $"
        )
    return name


def hash_password(password: str) -> str:
    """Return what is kept of a password."""
    return _hasher.hash(password)


def verify(hashed: str, password: bytes) -> bool:
    """Tell whether a hash is of this password. It takes time, on purpose."""
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


def _is_remark(line: str) -> bool:
    """Tell whether a line is for people alone."""
    return not line.strip() or line.startswith("#")


def read_users(path: Path) -> dict[str, User]:
    """Read a file of users; AccessError says which line is wrong."""
    users: dict[str, User] = {}
    for number, line in enumerate(_lines(path), 1):
        if _is_remark(line):
            continue
        parts = line.split(":")
        if len(parts) not in (2, 3) or not parts[1].startswith("$argon2"):
            raise AccessError(
                f"{path}, line {number}: expected name:hash or name:hash:groups, as pyrite passwd writes it"
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
            raise AccessError(f"{path}, line {number}: user {name!r} is there twice")
        if not HASH.fullmatch(parts[1]):
            raise AccessError(
                f"{path}, line {number}: user {name!r} has no whole argon2 hash; pyrite passwd makes one"
            )
        users[name] = User(name, parts[1], groups)
    return users


@contextmanager
def users_to_change(path: Path) -> Iterator[dict[str, User]]:
    """Give the users of a file, none if there is no file; what they were made is written at the end.

    Whoever else changes them waits until then: or the later one would write what the first had not yet done.
    """
    path = Path(os.path.realpath(path))  # of a link, the file
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # not the file itself, in whose place another will be
        users = read_users(path) if path.exists() else {}
        yield users
        write_users(path, users.values())
    finally:
        os.close(folder)


def write_users(path: Path, users: Iterable[User]) -> None:
    """Write a file of users, all of it or nothing: with the owner and the mode of the one that was there.

    A new one is for its owner alone to read. Remarks stay where they were.
    """
    left = {one.name: f"{one.name}:{one.hashed}:{','.join(sorted(one.groups))}" for one in users}
    lines: list[str] = []
    try:
        before = path.stat()
    except FileNotFoundError:
        before = None
    else:
        for line in _lines(path):
            name = line.partition(":")[0]
            if _is_remark(line):
                lines.append(line)
            elif name in left:
                lines.append(left.pop(name))
    lines += left.values()
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)  # one that was left behind may be anyone's
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            if before is not None:
                _be_like(file.fileno(), before, path)
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _be_like(descriptor: int, before: os.stat_result, path: Path) -> None:
    """Give a file the owner, group and mode of the one that it replaces: a service may have to read it."""
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(descriptor, before.st_uid, before.st_gid)
        except PermissionError:
            raise AccessError(
                f"{path}: belongs to user {before.st_uid} and group {before.st_gid}, and only root can keep "
                "it so; nothing was changed"
            ) from None
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))

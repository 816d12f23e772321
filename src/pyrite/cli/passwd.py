"""`pyrite passwd`: edit the file of users and password hashes."""

from __future__ import annotations

import argparse
import getpass
import sys
import warnings
from pathlib import Path

from pyrite.access.options import AccessError

_EXAMPLES = """\
examples:
  pyrite passwd users.pyrite ann                       add ann or change the password, with a prompt
  pyrite passwd users.pyrite bob --group sensors       also set bob's groups
  printf secret | pyrite passwd users.pyrite eve --stdin
  pyrite passwd users.pyrite --list
  pyrite passwd users.pyrite bob --delete

The broker reads the file named by access.users in pyrite.toml. Passwords are stored as argon2 hashes.
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "passwd",
        help="add users, change passwords, remove users",
        description="Add a user to a users file, or change a user's password and groups.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="the users file; created if it does not exist"
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the user")
    parser.add_argument(
        "--group", action="append", metavar="GROUP", help="a group the user belongs to; may be repeated"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--stdin", action="store_true", help="read the password from the first line of standard input"
    )
    action.add_argument("--delete", action="store_true", help="remove the user")
    action.add_argument("--list", action="store_true", help="list users and their groups")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        return _run(args)
    except AccessError as error:
        print(f"pyrite passwd: {error}", file=sys.stderr)
    except OSError as error:
        print(f"pyrite passwd: {args.file}: {error.strerror}", file=sys.stderr)
    except (KeyboardInterrupt, EOFError):
        print("pyrite passwd: cancelled, nothing was changed", file=sys.stderr)
    return 1


def _run(args: argparse.Namespace) -> int:
    from pyrite.access.users import User, check_name, hash_password, read_users, users_to_change

    there = read_users(args.file) if args.file.exists() or args.list or args.delete else {}
    if args.list:
        for user in there.values():
            print(f"{user.name}\t{', '.join(sorted(user.groups))}".rstrip())
        return 0
    if args.name is None:
        raise AccessError("expected a user name or --list")
    name = check_name("user", args.name)
    if args.delete:
        with users_to_change(args.file) as users:
            if users.pop(name, None) is None:
                raise AccessError(f"no user {name!r} in {args.file}")
        print(f"Removed user {name}.")
        return 0
    groups = frozenset(check_name("group", one) for one in args.group or ())
    hashed = hash_password(_password(args.stdin, name))  # hashed before the file is locked
    with users_to_change(args.file) as users:
        known = users.get(name)
        if args.group is None and known is not None:
            groups = known.groups
        users[name] = User(name, hashed, groups)
    print(f"{'Added' if known is None else 'Changed'} user {name}.")
    return 0


def _password(from_stdin: bool, name: str) -> str:
    try:
        password = sys.stdin.readline().rstrip("\n") if from_stdin else _asked_for(name)
        password.encode()
    except UnicodeError:
        raise AccessError("the password is not valid UTF-8; nothing was changed") from None
    if not password:
        raise AccessError("the password is empty; nothing was changed")
    return password


def _asked_for(name: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)  # raised when the password would be echoed
        try:
            password = getpass.getpass(f"Password for {name}: ")
            again = getpass.getpass("Repeat password: ")
        except getpass.GetPassWarning:
            raise AccessError("no terminal to prompt on; pass the password with --stdin") from None
    if again != password:
        raise AccessError("the passwords do not match; nothing was changed")
    return password

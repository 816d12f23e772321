"""`pyrite passwd`: the file of users and their passwords."""

from __future__ import annotations

import argparse
import getpass
import sys
import warnings
from pathlib import Path

_EXAMPLES = """\
examples:
  pyrite passwd users.pyrite ann                       add ann, or change the password; it is asked for
  pyrite passwd users.pyrite bob --group sensors       and say of which groups bob is
  printf secret | pyrite passwd users.pyrite eve --stdin
  pyrite passwd users.pyrite --list
  pyrite passwd users.pyrite bob --delete

The broker reads the file that access.users names in pyrite.toml. Passwords are kept as argon2 hashes.
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "passwd",
        help="add and remove users, and set their passwords",
        description="Add a user to a file of users, or change the password and the groups of one.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the file; it is made if it is not there")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the user")
    parser.add_argument(
        "--group", action="append", metavar="GROUP", help="a group of the user; may be repeated"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--stdin", action="store_true", help="read the password from standard input: its first line"
    )
    action.add_argument("--delete", action="store_true", help="remove the user")
    action.add_argument("--list", action="store_true", help="show the users and their groups")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Change the file, or show it; the exit code is 0 if that was done."""
    from pyrite.access.users import UsersError  # argon2 takes its time to load

    try:
        return _run(args)
    except UsersError as error:
        print(f"pyrite passwd: {error}", file=sys.stderr)
    except OSError as error:
        print(f"pyrite passwd: {args.file}: {error.strerror}", file=sys.stderr)
    except (KeyboardInterrupt, EOFError):
        print("pyrite passwd: nothing was changed", file=sys.stderr)
    return 1


def _run(args: argparse.Namespace) -> int:
    from pyrite.access.users import (
        User,
        UsersError,
        check_name,
        hash_password,
        read_users,
        users_to_change,
    )

    there = read_users(args.file) if args.file.exists() or args.list or args.delete else {}
    if args.list:
        for user in there.values():
            print(f"{user.name}\t{', '.join(sorted(user.groups))}".rstrip())
        return 0
    if args.name is None:
        raise UsersError("expected the name of a user, or --list")
    name = check_name("user", args.name)
    if args.delete:
        with users_to_change(args.file) as users:
            if users.pop(name, None) is None:
                raise UsersError(f"there is no user {name!r} in {args.file}")
        print(f"{name} is removed")
        return 0
    groups = frozenset(check_name("group", one) for one in args.group or ())
    hashed = hash_password(_password(args.stdin, name))  # before anyone has to wait for it
    with users_to_change(args.file) as users:
        known = users.get(name)
        if args.group is None and known is not None:
            groups = known.groups
        users[name] = User(name, hashed, groups)
    print(f"{name} is {'added' if known is None else 'changed'}")
    return 0


def _password(from_stdin: bool, name: str) -> str:
    from pyrite.access.users import UsersError

    try:
        password = sys.stdin.readline().rstrip("\n") if from_stdin else _asked_for(name)
        password.encode()
    except UnicodeError:
        raise UsersError("the password is not UTF-8 text; nothing was changed") from None
    if not password:
        raise UsersError("a password has at least one character; nothing was changed")
    return password


def _asked_for(name: str) -> str:
    from pyrite.access.users import UsersError

    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)  # it would be shown while it is written
        try:
            password = getpass.getpass(f"password of {name}: ")
            again = getpass.getpass("once more: ")
        except getpass.GetPassWarning:
            raise UsersError("there is no terminal to ask on: give the password with --stdin") from None
    if again != password:
        raise UsersError("the two passwords differ; nothing was changed")
    return password

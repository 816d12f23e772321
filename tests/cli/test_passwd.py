"""`pyrite passwd`, run as a user would."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from pyrite.access.users import read_users, verify

COMMAND = (sys.executable, "-m", "pyrite", "passwd")


def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        errors="surrogateescape",
        start_new_session=True,  # without a terminal to prompt on
    )


def test_passwd_adds_changes_lists_and_deletes_users(tmp_path: Path) -> None:
    path = tmp_path / "users"
    done = run(str(path), "ann", "--stdin", "--group", "ops", "--group", "dev", given="one\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Added user ann.\n", "")
    assert run(str(path), "bob", "--stdin", given="two").stdout == "Added user bob.\n"
    assert run(str(path), "ann", "--stdin", given="new\n").stdout == "Changed user ann.\n"
    assert run(str(path), "--list").stdout == "ann\tdev, ops\nbob\n"
    users = read_users(path)
    assert verify(users["ann"].hashed, b"new")
    assert not verify(users["ann"].hashed, b"one")
    assert users["ann"].groups == {"ops", "dev"}
    assert run(str(path), "bob", "--delete").stdout == "Removed user bob.\n"
    assert set(read_users(path)) == {"ann"}


@pytest.mark.parametrize(
    ("arguments", "given", "wrong"),
    [
        (("a b", "--stdin"), "x", "user 'a b': expected up to 128 characters"),
        (("ann", "--stdin", "--group", "a/b"), "x", "group 'a/b': expected"),
        (("ann", "--stdin"), "", "the password is empty; nothing was changed"),
        (("ann", "--delete"), "", "No such file"),
        (("--list",), "", "No such file"),
        ((), "", "expected a user name or --list"),
        (("ann", "--stdin"), "sec\udcffret", "the password is not valid UTF-8; nothing was changed"),
        (("ann",), "secret\nsecret\n", "no terminal to prompt on; pass the password with --stdin"),
    ],
)
def test_a_mistake_is_explained_and_changes_nothing(
    tmp_path: Path, arguments: tuple[str, ...], given: str, wrong: str
) -> None:
    path = tmp_path / "users"
    done = run(str(path), *arguments, given=given)
    assert done.returncode == 1
    assert wrong in done.stderr
    assert done.stderr.startswith("pyrite passwd: ")
    assert not path.exists()


def test_concurrent_changes_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "users"
    names = [f"user{number}" for number in range(8)]
    several = [
        subprocess.Popen([*COMMAND, str(path), name, "--stdin"], stdin=subprocess.PIPE) for name in names
    ]
    for one in several:  # all wait for their password, then write at once
        assert one.stdin is not None
        one.stdin.write(b"secret\n")
        one.stdin.close()
    assert [one.wait(60) for one in several] == [0] * len(several)
    assert set(read_users(path)) == {*names}
    assert [one.name for one in tmp_path.iterdir()] == ["users"]


def test_comments_in_the_file_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "users"
    run(str(path), "ann", "--stdin", given="secret")
    path.write_text(f"# of the first floor\n\n{path.read_text()}# of the second\n")
    run(str(path), "bob", "--stdin", given="secret")
    run(str(path), "ann", "--stdin", given="another")
    first, empty, ann, second, bob = path.read_text().splitlines()
    assert (first, empty, second) == ("# of the first floor", "", "# of the second")
    assert ann.startswith("ann:$argon2id$")
    assert bob.startswith("bob:$argon2id$")
    run(str(path), "ann", "--delete")
    assert path.read_text().splitlines() == [first, empty, second, bob]


def test_a_symbolic_link_loop_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.symlink_to(path)
    done = run(str(path), "ann", "--stdin", given="secret")
    assert (done.returncode, done.stderr) == (
        1,
        f"pyrite passwd: {path}: Too many levels of symbolic links\n",
    )


@pytest.mark.parametrize(
    ("second", "said"), [("secret", "Added user ann."), ("Secret", "the passwords do not match")]
)
def test_the_password_is_prompted_for_without_echo(tmp_path: Path, second: str, said: str) -> None:
    path = tmp_path / "users"
    process, terminal = pty.fork()
    if not process:
        os.execv(sys.executable, [*COMMAND, str(path), "ann"])
    seen = b""
    for question, answer in ((b"Password for ann: ", "secret"), (b"Repeat password: ", second)):
        while question not in seen:
            seen += os.read(terminal, 1_000)
        os.write(terminal, answer.encode() + b"\n")
    try:
        while piece := os.read(terminal, 1_000):
            seen += piece
    except OSError:
        pass  # end of file on a terminal
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.close(terminal)
    assert said in seen.decode()
    assert b"secret" not in seen
    assert (code == 0) == path.exists() == (second == "secret")


def test_owner_and_mode_of_the_file_are_kept(tmp_path: Path) -> None:
    """The broker may run as another user than the one who edits the file."""
    path, link = tmp_path / "users", tmp_path / "link"
    run(str(path), "ann", "--stdin", given="secret")
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    if os.getuid() == 0:
        os.chown(path, 0, 1)
    before = path.stat()
    link.symlink_to(path)
    assert run(str(link), "bob", "--stdin", given="secret").returncode == 0
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert link.is_symlink()
    assert set(read_users(path)) == {"ann", "bob"}

"""Filters that cover others, rules, users and failed log-ins."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.access.attempts import FIRST, FORGET, FREE, LONGEST, Attempts
from pyrite.access.guard import Guard
from pyrite.access.rules import Rule, Rules
from pyrite.access.users import User, UsersError, hash_password, read_users, verify, write_users
from pyrite.broker.access import Accept, Credentials, Refuse
from pyrite.broker.topics import covers, matches

LEVEL = st.sampled_from([b"a", b"b", b"", b"$x"])
TOPIC = st.lists(LEVEL, min_size=1, max_size=4).map(b"/".join)
FILTER = st.tuples(st.lists(LEVEL | st.just(b"+"), max_size=3), st.booleans()).map(
    lambda parts: b"/".join([*parts[0], *([b"#"] if parts[1] or not parts[0] else [])])
)


@settings(max_examples=500, deadline=None)
@given(FILTER, FILTER, st.lists(TOPIC, max_size=20))
def test_what_covers_a_filter_matches_all_that_it_matches(
    one: bytes, other: bytes, topics: list[bytes]
) -> None:
    if covers(one, other):
        for topic in topics:
            assert matches(one, topic) or not matches(other, topic)
    for topic in topics:
        assert covers(one, topic) == matches(one, topic), "a topic is a filter, too"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (b"#", b"a/#", True),
        (b"#", b"$SYS/#", False),
        (b"a/#", b"a", True),
        (b"a/#", b"#", False),
        (b"a/+", b"a/#", False),
        (b"a/+", b"a/+", True),
        (b"a/b", b"a/+", False),
        (b"+/+", b"a/+", True),
        (b"+", b"#", False),
    ],
)
def test_covers(one: bytes, other: bytes, expected: bool) -> None:
    assert covers(one, other) is expected


def test_rules() -> None:
    rules = Rules(
        [
            Rule(users=["ann"], publish=["a/#"], subscribe=["#"]),
            Rule(users=["*"], publish=["users/%u/#"], pull=["clients/%c"]),
            Rule(users=["anonymous"], subscribe=["news"]),
            Rule(groups=["ops"], manage=["#"]),
        ]
    )
    none: frozenset[str] = frozenset()

    def may(
        action: str, user: str | None, on: bytes, client: str = "c1", groups: frozenset[str] = none
    ) -> bool:
        return rules.allows(action, user, groups, client, on)

    assert may("publish", "ann", b"a/b")
    assert not may("publish", "ann", b"b")
    assert may("subscribe", "ann", b"x/+")
    assert not may("subscribe", "bob", b"x")
    assert may("publish", "bob", b"users/bob/x")
    assert not may("publish", "bob", b"users/ann/x")
    assert not may("publish", "+", b"users/bob/x"), "a name with a wildcard means nothing"
    assert not may("publish", "a/b", b"users/a/b/x")
    assert may("pull", "bob", b"clients/c1")
    assert not may("pull", "bob", b"clients/c2")
    assert not may("pull", "bob", b"clients/#", "#")
    assert may("subscribe", None, b"news")
    assert not may("publish", None, b"users//x")
    assert may("manage", "bob", b"any", groups=frozenset({"ops"}))
    assert not may("manage", "bob", b"any")


# Users


def test_the_file_of_users(tmp_path: Path) -> None:
    path = tmp_path / "users"
    ann = User("ann", hash_password("secret"), frozenset({"ops", "dev"}))
    bob = User("bob", hash_password("other"))
    write_users(path, [ann, bob])
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_users(path) == {"ann": ann, "bob": bob}
    assert "secret" not in path.read_text()
    assert verify(ann, b"secret")
    assert not verify(ann, b"Secret")
    assert not verify(None, b"")
    assert not verify(User("x", "$argon2id$broken"), b"")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("ann\n", "line 1: expected name:hash"),
        ("# fine\n\nann:plain\n", "line 3: expected name:hash"),
        ("a b:$argon2id$x\n", "line 1: user 'a b': expected up to 128"),
        ("ann:$argon2id$x:a/b\n", "line 1: group 'a/b': expected"),
        ("ann:$argon2id$x\nann:$argon2id$y\n", "line 2: user 'ann' is there twice"),
        ("\udcff", "is not UTF-8"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "users"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsersError) as caught:
        read_users(path)
    assert wrong in str(caught.value)
    with pytest.raises(UsersError, match="No such file"):
        read_users(tmp_path / "none")


# Failed log-ins


def test_attempts() -> None:
    now = 0.0
    attempts = Attempts(lambda: now)
    for _ in range(FREE - 1):
        attempts.failed("a")
    assert attempts.wait("a") == 0
    attempts.failed("a")
    assert attempts.wait("a") == FIRST
    assert attempts.wait("b") == 0
    now += FIRST
    assert attempts.wait("a") == 0
    attempts.failed("a")
    assert attempts.wait("a") == 2 * FIRST
    for _ in range(100):
        attempts.failed("a")
    assert attempts.wait("a") == LONGEST
    now += FORGET + 1
    assert attempts.wait("a") == 0
    attempts.failed("a")
    assert attempts.wait("a") == 0, "it begins anew"
    attempts.failed("b")
    attempts.succeeded("b")
    assert attempts.wait("b") == 0


def test_a_guard(tmp_path: Path) -> None:
    now = 0.0
    users = {"ann": User("ann", hash_password("secret"))}
    guard = Guard(users, [Rule(users=["ann"], publish=["a"])], anonymous=False, clock=lambda: now)

    def come(name: str | None, password: bytes | None, address: str = "here") -> Accept | Refuse:
        return guard.authenticate(Credentials("c", name, password, address))

    assert come("ann", b"secret") == Accept(username="ann")
    assert come(None, None) == Refuse(0x87, "a user name and password are needed here")
    for name in ["ann", "eve", "", "ann", None]:
        assert come(name, b"guess") == Refuse(0x86, "the user name or the password is wrong")
    assert come("ann", b"secret") == Refuse(
        0x87, "too many failed log-ins from this address; try again in 1 s"
    )
    assert come("ann", b"secret", "elsewhere") == Accept(username="ann")
    now += 1.1
    assert come("ann", b"secret") == Accept(username="ann")
    assert guard.may_publish(Credentials("c", "ann", None, "here"), "a")
    assert not guard.may_publish(Credentials("c", "bob", None, "here"), "a")
    assert Guard({}, [], anonymous=True).authenticate(Credentials("c", None, None, "x")) == Accept()

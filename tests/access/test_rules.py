"""Covering of filters, access rules, the file of users, and failed logins."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.access.guard import Guard
from pyrite.access.options import AccessError
from pyrite.access.rules import Rule, Rules
from pyrite.access.users import User, hash_password, read_users, verify, write_users
from pyrite.broker.access import Accept, Credentials, Refuse
from pyrite.broker.attempts import (
    FIRST_LOCK,
    FORGET_FAILURES_AFTER,
    FREE,
    FREE_BY_NAME,
    LONGEST_LOCK,
    Attempts,
    network_of,
)
from pyrite.topics.filters import covers, matches
from tests.support.passwords import quick_hash

HASHED = "$argon2id$v=19$m=8,t=1,p=1$7puUBXo15jU/A4/LO/F7xQ$vvaHHOPQVOAojfmuxxmoQTwxdsLM676QwXB5DtPTo8U"
LEVEL = st.sampled_from([b"a", b"b", b"", b"$x"])
TOPIC = st.lists(LEVEL, min_size=1, max_size=4).map(b"/".join)
FILTER = st.tuples(st.lists(LEVEL | st.just(b"+"), max_size=3), st.booleans()).map(
    lambda parts: b"/".join([*parts[0], *([b"#"] if parts[1] or not parts[0] else [])])
)


@settings(max_examples=500, deadline=None)
@given(FILTER, FILTER, st.lists(TOPIC, max_size=20))
def test_a_covering_filter_matches_all_topics_of_the_covered_one(
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
def test_examples_of_covering_filters(one: bytes, other: bytes, expected: bool) -> None:
    assert covers(one, other) is expected


def test_rules_grant_publish_subscribe_pull_and_admin() -> None:
    rules = Rules(
        [
            Rule(users=["ann"], publish=["a/#"], subscribe=["#"]),
            Rule(users=["*"], publish=["users/%u/#"], pull=["clients/%c"]),
            Rule(users=["anonymous"], subscribe=["news"]),
            Rule(groups=["ops"], admin=["#"]),
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
    assert not may("subscribe", "anonymous", b"news"), "a token may say any name, but not that it has none"
    assert not may("publish", None, b"users//x")
    assert may("admin", "bob", b"any", groups=frozenset({"ops"}))
    assert not may("admin", "bob", b"any")


@pytest.mark.parametrize(
    ("user", "client", "topic", "allowed"),
    [
        ("ann", "c1", b"users/ann/c1", True),
        ("%c", "victim", b"users/%c/victim", True),
        ("%c", "victim", b"users/victim/victim", False),
        ("ann", "%u", b"users/ann/ann", False),
        ("+", "c1", b"users/bob/c1", False),
        ("#", "c1", b"users/bob/c1", False),
        ("ann/x", "c1", b"users/ann/x/c1", False),
        ("ann", "+", b"users/ann/other", False),
        (None, "c1", b"users//c1", False),
        ("ann", "", b"users/ann/", False),
    ],
)
def test_names_in_filters_cannot_contain_wildcards(
    user: str | None, client: str, topic: bytes, allowed: bool
) -> None:
    rules = Rules([Rule(users=["*", "anonymous"], publish=["users/%u/%c"])])
    assert rules.allows("publish", user, frozenset(), client, topic) is allowed


def test_a_user_name_does_not_open_topics_of_the_broker() -> None:
    rules = Rules([Rule(users=["*"], subscribe=["%u/#", "%c/#"])])
    assert not rules.allows("subscribe", "$SYS", frozenset(), "$SYS", b"$SYS/#")


# Users


def test_the_file_of_users_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "users"
    ann = User("ann", hash_password("secret"), frozenset({"ops", "dev"}))
    bob = User("bob", hash_password("other"))
    write_users(path, [ann, bob])
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_users(path) == {"ann": ann, "bob": bob}
    assert "secret" not in path.read_text()
    assert verify(ann.hashed, b"secret")
    assert not verify(ann.hashed, b"Secret")
    assert not verify("$argon2id$broken", b"")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("ann\n", "line 1: expected name:hash"),
        ("# fine\n\nann:plain\n", "line 3: expected name:hash"),
        ("a b:$argon2id$x\n", "line 1: user 'a b': expected up to 128"),
        ("ann:$argon2id$x:a/b\n", "line 1: group 'a/b': expected"),
        (f"anonymous:{HASHED}\n", "line 1: user 'anonymous': reserved in access.rule"),
        (f"*:{HASHED}\n", "line 1: user '*': reserved in access.rule"),
        (f"ann:{HASHED}\nann:{HASHED}\n", "line 2: duplicate user 'ann'"),
        ("ann:$argon2id$garbage\n", "line 1: invalid argon2 hash of user 'ann'; pyrite passwd creates one"),
        (f"ann:{HASHED[:-40]}\n", "line 1: invalid argon2 hash of user 'ann'"),
        ("\udcff", "is not UTF-8"),
    ],
)
def test_invalid_files_of_users_are_errors(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "users"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(AccessError) as caught:
        read_users(path)
    assert wrong in str(caught.value)
    with pytest.raises(AccessError, match="No such file"):
        read_users(tmp_path / "none")


# Failed log-ins


def test_failed_logins_are_limited_by_address() -> None:
    now = 0.0
    attempts = Attempts(lambda: now)
    for number in range(FREE - 1):
        attempts.failed("a", f"name {number}")
    assert attempts.wait("a", "x") == 0
    attempts.failed("a", None)
    assert attempts.wait("a", "x") == FIRST_LOCK
    assert attempts.wait("a", None) == FIRST_LOCK
    assert attempts.wait("b", "x") == 0
    now += FIRST_LOCK
    assert attempts.wait("a", "x") == 0
    attempts.failed("a", None)
    assert attempts.wait("a", "x") == 2 * FIRST_LOCK
    for number in range(20):
        attempts.failed("a", f"name {number}")
        assert attempts.wait("a", "x") == 2 * FIRST_LOCK, "a lock does not grow by what it refuses"
    for _ in range(20):
        now += attempts.wait("a", "x")
        attempts.failed("a", None)
    assert attempts.wait("a", "x") == LONGEST_LOCK
    now += FORGET_FAILURES_AFTER + 1
    assert attempts.wait("a", "x") == 0
    attempts.failed("a", None)
    assert attempts.wait("a", "x") == 0, "it begins anew"


def test_a_successful_login_does_not_reset_guesses_of_other_names() -> None:
    attempts = Attempts(lambda: 0.0)
    for _ in range(FREE):
        attempts.failed("here", "ann")
        attempts.succeeded("here", "eve")
    assert attempts.wait("here", "ann") == FIRST_LOCK
    assert attempts.wait("here", "eve") == 0, "a known user is not locked out by failures of others"
    for _ in range(FREE):
        attempts.failed("here", "eve")
    assert attempts.wait("here", "eve") == FIRST_LOCK, "but counts for himself"


def test_failures_under_ones_own_name_while_locked_undo_no_failures_under_others() -> None:
    attempts = Attempts(lambda: 0.0)
    attempts.succeeded("here", "eve")
    for number in range(FREE):
        attempts.failed("here", f"name {number}")
    for _ in range(FREE - 1):
        attempts.failed("here", "eve")
    attempts.succeeded("here", "eve")
    assert attempts.wait("here", "ann") == FIRST_LOCK


def test_a_successful_login_resets_the_failures_of_that_name() -> None:
    attempts = Attempts(lambda: 0.0)
    for _ in range(FREE - 1):
        attempts.failed("here", "ann")
    attempts.succeeded("here", "ann")
    attempts.failed("here", "bob")
    assert attempts.wait("here", "bob") == 0


def test_failed_logins_are_limited_by_name() -> None:
    attempts = Attempts(lambda: 0.0)
    attempts.succeeded("home", "ann")
    for number in range(FREE_BY_NAME):
        attempts.failed(f"10.0.0.{number}", "ann")
    assert attempts.wait("elsewhere", "ann") == FIRST_LOCK
    assert attempts.wait("elsewhere", "bob") == 0
    assert attempts.wait("home", "ann") == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("unix", "unix", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_addresses_are_grouped_by_network(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same
    attempts = Attempts(lambda: 0.0)
    for _ in range(FREE):
        attempts.failed(one, None)
    assert (attempts.wait(other, "x") > 0) is same


def test_rules_are_enforced_for_credentials() -> None:
    users = {"ann": User("ann", quick_hash("secret"))}
    guard = Guard(users, [Rule(users=["ann"], publish=["a"])], anonymous=False)

    def come(name: str | None, password: bytes | None) -> Accept | Refuse:
        return guard.authenticate(Credentials("c", name, password, "here"))

    assert come("ann", b"secret") == Accept(username="ann", proof=users["ann"].hashed)
    assert come(None, None) == Refuse(0x87, "a user name and password are required")
    for name in ["ann", "eve", "", None]:
        assert come(name, b"guess") == Refuse(0x86, "wrong user name or password")
    assert guard.may_publish(Credentials("c", "ann", None, "here"), "a")
    assert not guard.may_publish(Credentials("c", "bob", None, "here"), "a")
    assert Guard({}, [], anonymous=True).authenticate(Credentials("c", None, None, "x")) == Accept()


def test_groups_come_from_the_file_and_the_token() -> None:
    users = {"ann": User("ann", HASHED, frozenset({"staff"}))}
    rules = [Rule(groups=["staff"], publish=["a"]), Rule(groups=["ops"], publish=["b"])]
    guard = Guard(users, rules, anonymous=False)
    by_password = Credentials("c", "ann", None, "here")
    by_token = Credentials("c", "ann", None, "here", groups=frozenset({"ops"}))
    assert [guard.may_publish(by_password, topic) for topic in "ab"] == [True, False]
    assert [guard.may_publish(by_token, topic) for topic in "ab"] == [True, True]


def test_decisions_about_long_topics_and_names_are_not_cached() -> None:
    guard = Guard({}, [Rule(users=["anonymous"], publish=["a/#"])], anonymous=True)
    client = Credentials("c", None, None, "here")
    before = kept_after(lambda: [guard.may_publish(client, f"a/{number}") for number in range(100)])
    assert before < 100_000
    assert (
        kept_after(lambda: [guard.may_publish(client, f"a/{n}".ljust(65_000)) for n in range(100)])
        < 1_000_000
    )

    def ask_by_many() -> list[bool]:
        many = (Credentials(f"{number}".ljust(65_000), None, None, "here") for number in range(100))
        return [guard.may_publish(one, "a/b") for one in many]

    assert kept_after(ask_by_many) < 1_000_000


def kept_after(ask: Callable[[], list[bool]]) -> int:
    """Return the bytes still allocated after checks that must all be allowed."""
    tracemalloc.start()
    try:
        assert all(ask())
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

"""Connect and Disconnect: open a client's session, and end its connection."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyrite.broker.access import Accept, Refuse
from pyrite.protocols.line.frames import FrameError, Line, line
from pyrite.protocols.states import CONNECTED

if TYPE_CHECKING:
    from pyrite.broker.accounts import Account
    from pyrite.broker.journal import Fault
    from pyrite.protocols.line.connection import LineConnection


def connect(connection: LineConnection, asked: Line) -> None:
    """`Connect CLIENT-ID [clean] [resume] [ttl=SECONDS] [user=NAME] [password=PASSWORD]`."""
    client_id = asked.word(0, "a client id").decode("utf-8", "replace")
    options = asked.options(1, ("clean", "resume", "ttl", "user", "password"))
    ttl = options.get("ttl", str(connection.default_ttl))
    if not ttl.isdecimal():
        raise FrameError("bad-option", f"Connect: ttl={ttl}: expected a number of seconds")
    if connection.session is not None:
        connection.connected_again(client_id)
        return
    expiry = min(int(ttl), connection.options.max_session_expiry)
    credentials, password = connection.credentials, options.get("password")
    credentials.username = options.get("user")
    credentials.password = None if password is None else password.encode()
    open_session(connection, client_id, "resume" not in options, expiry, asked=True)


def disconnect(connection: LineConnection, asked: Line) -> None:
    """`Disconnect`."""
    asked.options(0, ())
    connection.leave_when_answered(line("Ack", "Disconnect"))


def open_session(
    connection: LineConnection, client_id: str, clean: bool, expiry: int, asked: bool = False
) -> None:
    """Open the client's session if the client is accepted; `asked` is true if it sent Connect."""
    broker = connection.broker
    connection.credentials.client_id = client_id
    if client_id not in broker.sessions.by_id and len(broker.sessions.by_id) >= broker.limits.max_sessions:
        raise FrameError("full", "too many sessions", ends=True)
    connection.identify(partial(_let_in, connection, client_id, clean, expiry, asked))


def _let_in(
    connection: LineConnection,
    client_id: str,
    clean: bool,
    expiry: int,
    asked: bool,
    verdict: Accept | Refuse,
) -> None:
    credentials = connection.credentials
    if isinstance(verdict, Refuse):
        credentials.password = None
        raise FrameError("not-authorized", verdict.reason or "not authorized", ends=True)
    credentials.become(verdict)
    connection.claim(clean, partial(_claimed, connection, client_id, clean, expiry, asked))


def _claimed(
    connection: LineConnection,
    client_id: str,
    clean: bool,
    expiry: int,
    asked: bool,
    fault: Fault | None,
) -> None:
    broker, credentials = connection.broker, connection.credentials
    if fault is not None:
        raise FrameError("unavailable", fault.text, ends=True)
    account = broker.quotas.account_of(credentials)
    refusal = broker.quotas.session_refusal(account, client_id)
    if refusal:
        raise FrameError("full", refusal, ends=True)
    if broker.subscribing.takes_long_to_prune(client_id) and not clean:
        connection.add_work(_take_over(connection, expiry, account, asked))
    else:
        _open(connection, clean, expiry, account, asked)


def _take_over(
    connection: LineConnection, expiry: int, account: Account | None, asked: bool
) -> Iterator[None]:
    is_first = yield from connection.broker.sessions.take_over(connection.credentials)
    if not is_first:
        raise FrameError("displaced", "another connection has taken over this client id", ends=True)
    _open(connection, False, expiry, account, asked, is_pruned=True)


def _open(
    connection: LineConnection,
    clean: bool,
    expiry: int,
    account: Account | None,
    asked: bool,
    is_pruned: bool = False,
) -> None:
    broker, credentials = connection.broker, connection.credentials
    client_id = credentials.client_id
    before = broker.sessions.by_id.get(client_id)
    lasted = before is not None and before.lasting
    session, present = broker.sessions.open(client_id, clean, account)
    if not is_pruned:
        broker.subscribing.prune_at_once(session, credentials)
    broker.sessions.set_expiry(session, expiry)
    session.will = None
    connection.session = session
    connection.state = CONNECTED
    broker.sessions.attached(session, connection, min(connection.window, broker.limits.max_inflight))
    if asked:
        connection.say(line("Ack", "Connect", client_id, "resumed" if present else "new"))
    if session.lasting or lasted or connection.meter is not None:
        connection.wait_for_journal()
    connection.tell_connected("line", present)
    session.resume(broker.policy.reading_rights(session, credentials))
    if session.latest is not None:
        connection.newest.resume()

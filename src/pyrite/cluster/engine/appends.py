"""Appends groups to the order: several in flight, repeated until the engine answers or time is up."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from pyrite.cluster.engine.connection import EngineError, Work, end, parsed
from pyrite.cluster.order import Appended

logger = logging.getLogger(__name__)

MAX_IN_FLIGHT = 16
"""Groups sent and not answered."""
REPEAT_AFTER = 2.0
"""Seconds without an answer after which a group is sent again."""
GIVE_UP_AFTER = 10.0
"""Seconds after which the outcome of an append is reported as unknown."""
RETRY_DELAY = 0.2
"""Seconds before a group is sent again that the engine could not take at the moment."""
CHECK_INTERVAL = 0.1
PERMANENT = frozenset((10054,))
"""JetStream's errors that a repetition does not cure: the message is too large."""


class _Append:
    """A group that is to be appended."""

    __slots__ = ("data", "done", "identity", "sent_at", "since", "why")

    def __init__(self, data: bytes, identity: str, done: Callable[[Appended], object], now: float) -> None:
        self.data = data
        self.identity = identity
        self.done = done
        self.since = now
        self.sent_at = 0.0
        """When the group was sent last; 0 if it is to be sent."""
        self.why = ""
        """Why the engine did not take the group yet."""


class Appends:
    """The groups of this node that the engine has not confirmed."""

    def __init__(self, subject: str, work: Work, confirmed: Callable[[], object]) -> None:
        self._subject = subject
        self._work = work
        self._confirmed = confirmed
        """Called whenever the engine confirms a group."""
        self._client: Client | None = None
        self._inbox = ""
        self._number = 0
        self._waiting: deque[_Append] = deque()
        self._in_flight: OrderedDict[str, _Append] = OrderedDict()
        """Groups by the last part of the subject for their answer, in the order of append."""
        self._wanted = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def unconfirmed(self) -> int:
        """The number of groups that the engine has not confirmed."""
        return len(self._waiting) + len(self._in_flight)

    def append(self, data: bytes, identity: str, done: Callable[[Appended], object]) -> None:
        """Append a group."""
        self._waiting.append(_Append(data, identity, done, monotonic()))
        self._wanted.set()

    async def connected(self, client: Client) -> None:
        """Send over a new connection, first the groups in flight."""
        self._inbox = client.new_inbox()
        await client.subscribe(self._inbox + ".*", cb=self._answered)
        for one in self._in_flight.values():
            one.sent_at = 0.0
        self._client = client
        self._wanted.set()

    def lost(self) -> None:
        """Send nothing until there is a new connection."""
        self._client = None

    async def close(self) -> None:
        """Stop sending."""
        await end(self._task)

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(CHECK_INTERVAL if self.unconfirmed else None):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            self._give_up()
            try:
                await self._send()
            except (nats.errors.Error, OSError) as error:
                logger.debug("cannot send a group: %s", error)
            except Exception:  # whatever happens, groups must not wait for ever
                logger.exception("internal error")

    def _give_up(self) -> None:
        """Report the outcome of appends that took too long as unknown."""
        before = monotonic() - GIVE_UP_AFTER
        late = [token for token, one in self._in_flight.items() if one.since < before]
        for token in late:
            self._report_unknown(self._in_flight.pop(token))
        while self._waiting and self._waiting[0].since < before:
            self._report_unknown(self._waiting.popleft())

    def _report_unknown(self, one: _Append) -> None:
        why = one.why or ("no answer" if self._client is not None else "not connected")
        self._report(one, None, f"the engine did not confirm the group within {GIVE_UP_AFTER:.0f} s: {why}")

    def _report(self, one: _Append, sequence: int | None, why: str = "") -> None:
        self._work(lambda: one.done(Appended(sequence, why)))

    async def _send(self) -> None:
        while self._waiting and len(self._in_flight) < MAX_IN_FLIGHT:
            self._number += 1
            self._in_flight[str(self._number)] = self._waiting.popleft()
        now = monotonic()
        for token, one in list(self._in_flight.items()):
            client = self._client
            if client is None:
                return
            if one.sent_at > now - REPEAT_AFTER or token not in self._in_flight:
                continue
            if len(one.data) > client.max_payload:
                del self._in_flight[token]
                size, most = len(one.data), client.max_payload
                self._report(
                    one, None, f"a group of {size:,} bytes exceeds the engine's max_payload of {most:,}"
                )
                continue
            one.sent_at = now
            headers = {"Nats-Msg-Id": one.identity}
            await client.publish(self._subject, one.data, f"{self._inbox}.{token}", headers)

    async def _answered(self, message: Msg) -> None:
        token = message.subject.rpartition(".")[2]
        one = self._in_flight.get(token)
        if one is None:
            return
        try:
            if message.headers and message.headers.get("Status"):
                raise EngineError(503, "the engine has no leader")
            sequence = int(parsed(message.data)["seq"])
        except EngineError as error:
            one.why = str(error)
            if error.detail in PERMANENT:
                del self._in_flight[token]
                self._report(one, None, one.why)
            else:  # the group is sent again after the delay
                one.sent_at = monotonic() - REPEAT_AFTER + RETRY_DELAY
            return
        del self._in_flight[token]
        self._confirmed()
        self._report(one, sequence)
        if self._waiting:
            self._wanted.set()

"""Reads all groups in their order: a pull consumer, replaced whenever it falls silent or skips a sequence.

nats-py's ordered consumer is pushed to, without a bound on memory unless the server's flow control holds,
and drops messages beyond it. Pulling asks for so many bytes, and for no more until they were applied.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from pyrite.cluster.engine.connection import Connection, EngineError, Work, end
from pyrite.cluster.order import Position
from pyrite.errors import PyriteError

logger = logging.getLogger(__name__)

GROUPS_PER_REQUEST = 256
BYTES_PER_REQUEST = 8 * 1024 * 1024
REQUEST_TIME = 30.0
"""Seconds after which a request for groups is replaced."""
HEARTBEAT = 1.0
"""Seconds without a group after which the engine says that the consumer lives."""
SILENCE = 3.0
"""Seconds without group and heartbeat after which the consumer is replaced."""
LOST_AFTER = 10.0
"""Seconds for which the engine must hold fewer groups than were delivered before they are lost."""
RETRY_DELAY = 0.2
TURN = 0.002
"""Seconds for which groups are delivered before the event loop gets a turn."""
ENDS = frozenset(("Batch Completed", "Message Size Exceeds MaxBytes"))
"""Descriptions of the ends of requests that have got what they asked for; others end the consumer."""
NANO = 1_000_000_000


class Silent(PyriteError):
    """The consumer is gone, or skipped a sequence."""


class Follower:
    """Delivers every group after a sequence, in order, without gaps."""

    def __init__(
        self,
        connection: Connection,
        stream: str,
        position: Callable[[], Awaitable[Position]],
        after: int,
        deliver: Callable[[int, bytes], object],
        lost: Callable[[int], object],
        work: Work,
    ) -> None:
        self._work = work
        self._connection = connection
        self._stream = stream
        self._position = position
        self._deliver = deliver
        self._lost = lost
        self.next = after + 1
        """The sequence that is delivered next."""
        self.is_paused = False
        self.consumers = 0
        """Consumers that were created; more than one if reading had to begin again."""
        self._received: deque[tuple[int, bytes]] = deque()
        """Groups that were received and not delivered; bounded by what is requested."""
        self._heard_at = 0.0
        self._expected = 0
        """The last sequence that a quorum is known to hold."""
        self._behind_since = 0.0
        """Since when the engine has held fewer groups than were delivered; 0 if it has not."""
        self._moved_at = 0.0
        """When a group was received, or all were."""
        self._requested = False
        """Whether the engine has a request for more groups that it has not ended."""
        self._requests = 0
        self._got = 0
        """Groups that were received for this request."""
        self._trouble = ""
        self._client: Client | None = None
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def pause(self) -> None:
        """Deliver nothing until `resume`."""
        self.is_paused = True

    def resume(self) -> None:
        """Deliver again."""
        self.is_paused = False
        self._changed.set()

    def expect(self, last: int) -> None:
        """Replace the consumer if groups up to a sequence do not arrive."""
        self._expected = last

    def connection_changed(self) -> None:
        """Use the new connection at once."""
        self._client = None
        self._changed.set()

    async def close(self) -> None:
        """Stop."""
        await end(self._task)

    async def _run(self) -> None:
        while True:
            try:
                if not await self._consume():
                    return
            except (Silent, EngineError, nats.errors.Error, OSError, TimeoutError) as error:
                logger.debug("reading groups begins again after %d: %s", self.next - 1, error)
            except Exception:  # reading must go on
                logger.exception("internal error")
            await asyncio.sleep(RETRY_DELAY)

    async def _consume(self) -> bool:
        """Read with one consumer until it fails; return False if the next group is not to be had."""
        client = self._client = self._connection.client
        if client is None:
            raise Silent("not connected")
        held = await self._position()
        if self.next <= held.last + 1:
            self._behind_since = 0.0
        if self.next < held.first:
            self._work(lambda: self._lost(held.first))
            return False
        if self.next > held.last + 1:
            # A leader that was just elected answers before it has applied all that is committed.
            self._behind_since = self._behind_since or monotonic()
            if monotonic() - self._behind_since < LOST_AFTER:
                raise Silent(f"the engine holds {held.last}")
            self._work(lambda: self._lost(held.last + 1))
            return False
        self._received.clear()
        self._trouble = ""
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox + ".*", cb=self._hear)
        consumer = inbox.rpartition(".")[2]
        try:
            await self._connection.request(
                f"$JS.API.CONSUMER.CREATE.{self._stream}.{consumer}",
                {
                    "stream_name": self._stream,
                    "config": {
                        "name": consumer,
                        "deliver_policy": "by_start_sequence",
                        "opt_start_seq": self.next,
                        "ack_policy": "none",
                        "max_deliver": 1,
                        "replay_policy": "instant",
                        "mem_storage": True,
                        "num_replicas": 1,
                        "inactive_threshold": 30 * NANO,
                    },
                },
            )
            self.consumers += 1
            self._heard_at = self._moved_at = monotonic()
            self._requested = False
            while True:
                await self._turn(client, consumer, inbox)
        finally:
            self._received.clear()
            try:
                await subscription.unsubscribe()
                await client.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{consumer}")
            except (nats.errors.Error, OSError):
                pass

    async def _turn(self, client: Client, consumer: str, inbox: str) -> None:
        """Deliver groups for a turn; request more; wait for more."""
        if self._client is not client or client is not self._connection.client:
            raise Silent("the connection was lost")
        self._changed.clear()
        if self._trouble:
            trouble, self._trouble = self._trouble, ""
            raise Silent(trouble)
        if self._received and not self.is_paused:
            self._work(self._deliver_some)
            await asyncio.sleep(0)
            return
        if not self._received and not self._requested and not self.is_paused:
            await self._request(client, consumer, inbox)
        if self._requested and monotonic() - self._heard_at > SILENCE:
            raise Silent("the consumer is silent")
        if self._expected < self.next or self.is_paused:
            self._moved_at = monotonic()
        elif monotonic() - self._moved_at > SILENCE:
            raise Silent("the consumer does not deliver")
        try:
            async with asyncio.timeout(HEARTBEAT):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _deliver_some(self) -> None:
        until = monotonic() + TURN
        while self._received and not self.is_paused:
            sequence, data = self._received.popleft()
            if sequence > self.next:
                self._trouble = f"sequence {sequence} follows {self.next - 1}"
                return
            if sequence == self.next:
                self.next += 1
                self._deliver(sequence, data)
            if monotonic() > until:
                return

    async def _request(self, client: Client, consumer: str, inbox: str) -> None:
        most = max(BYTES_PER_REQUEST, client.max_payload + 64 * 1024)
        self._requests += 1
        self._got = 0
        self._requested = True
        self._heard_at = monotonic()
        body = {
            "batch": GROUPS_PER_REQUEST,
            "max_bytes": most,
            "expires": int(REQUEST_TIME * NANO),
            "idle_heartbeat": int(HEARTBEAT * NANO),
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{consumer}"
        await client.publish(subject, json.dumps(body).encode(), f"{inbox}.{self._requests}")

    async def _hear(self, message: Msg) -> None:
        """Take a group, or word of the consumer."""
        self._heard_at = monotonic()
        status = message.headers.get("Status") if message.headers else None
        if status is None or message.reply.startswith("$JS.ACK."):
            self._received.append((sequence_of(message.reply), message.data))
            self._moved_at = self._heard_at
            self._got += 1
            if self._got >= GROUPS_PER_REQUEST:
                self._requested = False
        elif status != "100":
            description = (message.headers or {}).get("Description", "")
            if message.subject.rpartition(".")[2] == str(self._requests):
                self._requested = False
            if status == "503" or (status == "409" and description not in ENDS):
                self._trouble = f"{status} {description}"
        self._changed.set()


def sequence_of(reply: str) -> int:
    """Return a message's sequence in its stream, from the subject for its acknowledgement."""
    parts = reply.split(".")
    # $JS.ACK.stream.consumer.delivered.sequence..., or with domain and account before the stream.
    return int(parts[5] if len(parts) == 9 else parts[7])

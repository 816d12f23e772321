"""The work of `pyrite sub`: subscribe, print messages, and decide when to stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

from pyrite.cli.connection import CommandConnection, refused_subscription
from pyrite.cli.errors import CommandError, describe, discard_stdout
from pyrite.cli.message_format import Format, Received
from pyrite.client import Message, PublishError, Subscription
from pyrite.topics.filters import matches, without_share

TIMED_OUT = 27  # mosquitto_sub's exit code for -W
MAX_BATCH = 1_000
"""Maximum number of messages printed with one write."""
RETAIN_HANDLING = {"always": 0, "new": 1, "never": 2}


class SubscribeCommand:
    """Prints received messages until an option, a signal or an error ends it."""

    def __init__(self, connection: CommandConnection, args: argparse.Namespace, form: Format) -> None:
        self._connection = connection
        self._client = connection.client
        self._args = args
        self._format = form
        self._ending = b"" if args.no_newline else b"\n"
        self._output = sys.stdout.buffer
        self._unwanted = [without_share(os.fsencode(each)) for each in args.filter_out]
        self._left = sys.maxsize if args.count is None else args.count
        self._done = False
        self._removals: set[asyncio.Future[None]] = set()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._connection.stop, 0)
        _call_at_hangup(self._output.fileno(), self._lose_reader)
        if self._args.timeout is not None:
            loop.call_later(self._args.timeout, self._connection.stop, TIMED_OUT)
        exit_code = await self._connection.run(self._work)
        if exit_code == TIMED_OUT:
            self._connection.warn("timed out.")
        return exit_code

    async def _work(self) -> int:
        messages = await self._subscribe()
        while not self._done and (batch := await messages.take(min(self._left, MAX_BATCH))):
            # Unhandled messages stay unacknowledged, and go to the session's next connection.
            messages.done(batch[: self._handle(batch)])
        if self._removals:
            await asyncio.wait(self._removals)
        return 0

    async def _subscribe(self) -> Subscription:
        args, properties = self._args, self._connection.properties("subscribe")
        if self._connection.is_mqtt5:
            properties.setdefault(
                "subscription_identifier", None
            )  # all filters are one subscription, which needs no identifier
        messages = await self._client.subscribe(
            args.topic,
            args.qos,
            no_local=args.no_local,
            retain_as_published=args.retain_as_published,
            retain_handling=RETAIN_HANDLING[args.retain_handling],
            unclaimed=True,
            properties=properties,
        )
        for topic_filter, reason in messages.refused.items():
            self._connection.warn(refused_subscription(topic_filter, reason, messages.said))
        self._done = args.exit_subscribed
        return messages

    def _handle(self, batch: Sequence[Message]) -> int:
        """Print messages until there is a reason to stop; return how many were handled."""
        lines: list[bytes] = []
        handled = 0
        for message in batch:
            if self._is_wanted(message):
                lines.append(self._line_of(message))
                self._left -= 1
                self._done = self._left == 0
            handled += 1
            if self._done:
                break
        self._print(b"".join(lines))
        return handled

    def _is_wanted(self, message: Message) -> bool:
        args = self._args
        if not message.retain and args.retained_only:
            self._done = True
            return False
        if message.retain and args.no_retain:
            return False
        if self._unwanted:
            topic = message.topic.encode()
            if any(matches(each, topic) for each in self._unwanted):
                return False
        if message.retain and args.remove_retained:
            self._remove(message.topic)
        return True

    def _remove(self, topic: str) -> None:
        removal = self._client.publish_soon(topic, b"", 1, retain=True)
        self._removals.add(removal)
        removal.add_done_callback(self._removed)

    def _removed(self, removal: asyncio.Future[None]) -> None:
        self._removals.discard(removal)
        error = removal.exception()
        if isinstance(error, PublishError):
            why = describe(error.reason, error.said)
            self._connection.warn(f"the broker refused to clear a retained message: {why}.")

    def _line_of(self, message: Message) -> bytes:
        received = Received(
            message.topic,
            message.payload,
            message.qos,
            message.retain,
            message.packet_id,
            message.properties,
            time.time_ns(),
        )
        try:
            return self._format(received) + self._ending
        except CommandError as error:
            self._connection.warn(f"{error}.")
            return b""

    def _print(self, lines: bytes) -> None:
        try:
            self._output.write(lines)
            self._output.flush()
        except BrokenPipeError:
            self._lose_reader()
        except OSError as error:
            raise CommandError(f"cannot write to stdout: {error.strerror}.") from None

    def _lose_reader(self) -> None:
        self._connection.stop(0)
        discard_stdout()


def _call_at_hangup(output: int, call: Callable[[], None]) -> None:
    """Call `call` when the reader of our output is gone.

    This takes a thread: an event loop cannot wait for a hang-up alone.
    """
    loop = asyncio.get_running_loop()
    poller = select.poll()
    poller.register(output, 0)

    def wait() -> None:
        poller.poll()
        try:
            loop.call_soon_threadsafe(call)
        except RuntimeError:
            pass  # the loop has ended

    threading.Thread(target=wait, name="hangup", daemon=True).start()

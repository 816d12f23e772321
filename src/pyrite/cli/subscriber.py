"""The heart of `pyrite sub`: subscribes, prints what arrives, and knows when to stop."""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from paho.mqtt.client import MQTTMessage, topic_matches_sub
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from pyrite.cli.connection import Connection, ConnectionLost, describe
from pyrite.cli.connection_options import CommandError
from pyrite.cli.message_format import Format, NotJSON, Received

TIMED_OUT = 27  # mosquitto_sub's exit code for -W
RECONNECT_SECONDS = 1.0
RETAIN_HANDLING = {"always": 0, "new": 1, "never": 2}


class Subscriber:
    """Prints what arrives on the subscriptions until there is a reason to stop."""

    def __init__(self, connection: Connection, args: argparse.Namespace, form: Format) -> None:
        self._connection = connection
        self._client = connection.client
        self._args = args
        self._format = form
        self._ending = b"" if args.no_newline else b"\n"
        self._output = sys.stdout.buffer
        self._deadline = time.monotonic() + args.timeout if args.timeout is not None else float("inf")
        self._messages_left = float("inf") if args.count is None else args.count
        self._done = False
        self._interrupted = False
        self._connecting = False
        self._unanswered: set[int | None] = set()
        self._removals = 0
        self._refusal: CommandError | None = None
        self._aliases: dict[int, str] = {}
        self._client.on_message = self._on_message
        self._client.on_subscribe = self._on_subscribe
        self._client.on_unsubscribe = self._on_unsubscribe
        self._client.on_publish = self._on_publish

    def run(self) -> int:
        """Print messages; returns the exit code."""
        with _signals(self._on_signal) as self._signals:
            self._open()
            while True:
                try:
                    self._request_subscriptions()
                    while not self._finished():
                        ready = self._connection.turn(
                            self._patience(), (self._signals,), (self._output.fileno(),)
                        )
                        self._notice(ready)
                    self._connection.close()
                    break
                except ConnectionLost as error:
                    if not error.worth_retrying:
                        raise
                    self._connection.warn(f"{error} Connecting again.")
                    if not self._reconnect():
                        break
        if self._done or self._interrupted:
            return 0
        self._connection.warn("timed out.")
        return TIMED_OUT

    def _open(self) -> None:
        self._connecting = True
        try:
            self._connection.open()
        finally:
            self._connecting = False

    def _reconnect(self) -> bool:
        """Try until the broker is back; False when there is a reason to stop instead."""
        # Acknowledgements of removals are not coming any more; what is still retained will arrive once more.
        self._removals = 0
        while not self._finished():
            pause = min(RECONNECT_SECONDS, self._patience())
            self._notice(_poll(pause, self._signals, self._output.fileno()))
            if self._finished():
                break
            try:
                self._open()
            except ConnectionLost as error:
                self._connection.debug(str(error))
            except KeyboardInterrupt:
                self._interrupted = True
            else:
                return True
        return False

    def _finished(self) -> bool:
        if self._refusal is not None:
            self._connection.close()
            raise self._refusal
        settled = self._done and not self._removals
        return settled or self._interrupted or time.monotonic() >= self._deadline

    def _patience(self) -> float:
        return max(0.0, min(1.0, self._deadline - time.monotonic()))

    def _notice(self, ready: set[int]) -> None:
        """Stop for a signal, and when whoever reads our output is gone."""
        if self._signals in ready:
            self._interrupted = True
        if self._output.fileno() in ready:
            self._give_output_up()

    def _on_signal(self, _number: int, _frame: Any) -> None:
        # The loop learns of signals from the file it watches; connecting has no loop to tell.
        if self._connecting:
            raise KeyboardInterrupt

    def _request_subscriptions(self) -> None:
        self._aliases.clear()
        self._unanswered.clear()
        args = self._args
        if args.topic:
            options: int | SubscribeOptions = args.qos
            if self._connection.is_mqtt5:
                retain_handling = RETAIN_HANDLING[args.retain_handling]
                options = SubscribeOptions(args.qos, args.no_local, args.retain_as_published, retain_handling)
            filters: Any = [(topic, options) for topic in args.topic]
            _, packet_identifier = self._client.subscribe(
                filters, properties=self._connection.properties("subscribe")
            )
            self._unanswered.add(packet_identifier)
        if args.unsubscribe:
            properties = self._connection.properties("unsubscribe")
            _, packet_identifier = self._client.unsubscribe(args.unsubscribe, properties)
            self._unanswered.add(packet_identifier)

    def _on_subscribe(
        self, _client: Any, _userdata: Any, mid: int, reasons: list[ReasonCode], properties: Properties | None
    ) -> None:
        refused = []
        for topic, reason in zip(self._args.topic, reasons, strict=False):
            if reason.is_failure:
                refused.append(
                    f"the broker refused the subscription to {topic}: {describe(reason, properties)}."
                )
            else:
                self._connection.debug(f"subscribed to {topic} with QoS {reason.value}")
        if refused and len(refused) == len(reasons):
            self._refusal = CommandError(" ".join(refused), exit_code=reasons[0].value)
            return
        for each in refused:
            self._connection.warn(each)
        self._answered(mid)

    def _on_unsubscribe(
        self, _client: Any, _userdata: Any, mid: int, reasons: list[ReasonCode], properties: Properties | None
    ) -> None:
        for topic, reason in zip(self._args.unsubscribe, reasons, strict=False):
            if reason.is_failure:
                self._connection.warn(
                    f"the broker refused to unsubscribe {topic}: {describe(reason, properties)}."
                )
            else:
                self._connection.debug(f"unsubscribed from {topic}")
        self._answered(mid)

    def _answered(self, packet_identifier: int) -> None:
        self._unanswered.discard(packet_identifier)
        if self._args.exit_subscribed and not self._unanswered:
            self._done = True

    def _on_publish(
        self, _client: Any, _userdata: Any, _mid: int, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self._removals -= 1
        if reason.is_failure:
            self._connection.warn(f"the broker kept a retained message: {describe(reason, properties)}.")

    def _on_message(self, _client: Any, _userdata: Any, arrived: MQTTMessage) -> None:
        args = self._args
        if self._done or self._interrupted:
            return
        if args.retained_only and not arrived.retain:
            self._done = True
            return
        topic = self._topic_of(arrived)
        if arrived.retain and args.no_retain:
            return
        if any(topic_matches_sub(unwanted, topic) for unwanted in args.filter_out):
            return
        if args.remove_retained and arrived.retain:
            self._removals += 1
            self._client.publish(topic, b"", qos=1, retain=True)
        self._print(
            Received(
                topic,
                bytes(arrived.payload),
                arrived.qos,
                arrived.retain,
                arrived.mid,
                arrived.properties,
                time.time_ns(),
            )
        )
        self._messages_left -= 1
        if self._messages_left <= 0:
            self._done = True
            # What else has arrived stays unacknowledged, for the session's next connection to get; unless we
            # wait for acknowledgements ourselves, which come after it.
            self._connection.enough = not self._removals

    def _topic_of(self, arrived: MQTTMessage) -> str:
        """Resolve the topic alias: a broker uses them if `-D connect topic-alias-maximum` invites it."""
        alias = getattr(arrived.properties, "TopicAlias", None)
        topic = arrived.topic
        if alias is None:
            return topic
        if topic:
            self._aliases[alias] = topic
        return self._aliases.get(alias, "")

    def _print(self, message: Received) -> None:
        try:
            line = self._format(message)
        except NotJSON as error:
            self._connection.warn(f"{error}.")
            return
        try:
            self._output.write(line + self._ending)
            self._output.flush()
        except BrokenPipeError:
            self._give_output_up()
        except OSError as error:
            raise CommandError(f"cannot write to stdout: {error.strerror}.") from None

    def _give_output_up(self) -> None:
        self._interrupted = True
        # What is still in the buffer must go somewhere, or Python complains about it on its way out.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._output.fileno())
        os.close(nowhere)


@contextmanager
def _signals(handler: Callable[[int, Any], None]) -> Iterator[int]:
    """Yield a file that becomes readable when SIGINT or SIGTERM asks us to end."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    handlers = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield reader.fileno()
    finally:
        signal.set_wakeup_fd(before)
        for number, previous in handlers.items():
            signal.signal(number, previous)
        reader.close()
        writer.close()


def _poll(timeout: float, readable: int, hangup: int) -> set[int]:
    poller = select.poll()
    poller.register(readable, select.POLLIN)
    poller.register(hangup, 0)
    return {number for number, _ in poller.poll(timeout * 1000)}

"""SUBSCRIBE and UNSUBSCRIBE of the asyncio client, and subscribing again after a lost session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from pyrite.client.errors import ClientError, SubscribeError, reason_text
from pyrite.client.events import Answered
from pyrite.client.inbox import Inbox
from pyrite.client.message import Properties
from pyrite.client.protocol import Protocol
from pyrite.client.subscription import Subscription
from pyrite.protocols.mqtt.packets import V5
from pyrite.protocols.mqtt.reasons import Reason

_log = logging.getLogger("pyrite.client")


class Subscriptions:
    """The subscriptions of a client; `flush_soon` schedules a flush."""

    def __init__(self, protocol: Protocol, inbox: Inbox, flush_soon: Callable[[], None]) -> None:
        self._protocol = protocol
        self._inbox = inbox
        self._flush_soon = flush_soon
        self._answers: dict[int, asyncio.Future[Answered]] = {}
        self._leaving: set[int] = set()
        """Packet identifiers of UNSUBSCRIBE in `_answers`."""
        self._last_identifier = 0

    @property
    def waiting(self) -> bool:
        """True while a call waits for an answer."""
        return bool(self._answers)

    async def subscribe(self, subscription: Subscription, takes_unclaimed: bool) -> None:
        """Subscribe; raises SubscribeError if the broker grants none of the filters."""
        for name in subscription.filters:
            if name in self._inbox:
                raise ClientError(f"already subscribed to {name}: a client has one subscription per filter")
        self._identify(subscription)
        self._inbox.open(subscription, takes_unclaimed)
        if not subscription.filters:
            return
        try:
            packet_id = self._protocol.subscribe(subscription.wishes, subscription.request())
            self._grant(subscription, await self._ask(packet_id))
        except SubscribeError:
            self._inbox.remove(subscription)
            raise
        except asyncio.CancelledError:
            # The broker may have granted the subscription, or be about to.
            names = subscription.filters
            for name in names:
                self._inbox.leave(name)
            self._protocol.unsubscribe([name.encode() for name in names])
            self._flush_soon()
            raise

    def _identify(self, subscription: Subscription) -> None:
        """Assign a subscription identifier, which tells overlapping filters apart."""
        available = self._protocol.capabilities.get("subscription_identifier_available", 1)
        if self._protocol.version == V5 and available:
            self._last_identifier += 1
            subscription.properties.setdefault("subscription_identifier", self._last_identifier)

    def _grant(self, subscription: Subscription, answer: Answered) -> None:
        reasons = answer.reasons + [Reason.UNSPECIFIED_ERROR] * len(subscription.filters)
        answers = dict(zip(subscription.filters, reasons, strict=False))
        subscription.granted = {name: reason for name, reason in answers.items() if reason <= 2}
        subscription.refused = {name: reason for name, reason in answers.items() if reason > 2}
        subscription.said = answer.text
        for name, qos in subscription.granted.items():
            _log.debug("subscribed to %s with QoS %d", name, qos)
        if not subscription.granted:
            text = ", ".join(f"{name}: {reason_text(reason)}" for name, reason in answers.items())
            said = f" ({answer.text})" if answer.text else ""
            raise SubscribeError(
                f"the broker refused the subscription to {text}{said}", subscription.refused, answer.text
            )
        for name in subscription.refused:
            self._inbox.forget(name)

    async def _ask(self, packet_id: int) -> Answered:
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._answers[packet_id] = answer
        self._flush_soon()
        try:
            return await answer
        except asyncio.CancelledError:
            self._protocol.abandon_request(packet_id)
            raise
        finally:
            self._answers.pop(packet_id, None)

    async def unsubscribe(self, names: Sequence[str], properties: Properties | None) -> dict[str, int]:
        """Unsubscribe; returns the reason codes of the filters that the broker refused."""
        for name in names:
            self._inbox.leave(name)
        packet_id = self._protocol.unsubscribe([name.encode() for name in names], properties)
        if not self._protocol.connected:
            return {}
        self._leaving.add(packet_id)
        try:
            answer = await self._ask(packet_id)
        finally:
            self._leaving.discard(packet_id)
        answers = zip(names, answer.reasons, strict=False)
        return {name: reason for name, reason in answers if reason >= Reason.UNSPECIFIED_ERROR}

    def again(self) -> None:
        """Subscribe again, as the broker has lost the session."""
        for subscription in self._inbox:
            if subscription.granted:
                packet_id = self._protocol.subscribe(subscription.wishes, subscription.request())
                answer = self._answers[packet_id] = asyncio.get_running_loop().create_future()
                answer.add_done_callback(partial(self._subscribed_again, subscription, packet_id))
        self._flush_soon()

    def _subscribed_again(
        self, subscription: Subscription, packet_id: int, answer: asyncio.Future[Answered]
    ) -> None:
        self._answers.pop(packet_id, None)
        if answer.cancelled() or answer.exception() is not None:
            return  # the client has ended, and the iterator with it
        try:
            self._grant(subscription, answer.result())
        except SubscribeError as error:
            self._inbox.remove(subscription)
            subscription.end(error)

    def answered(self, event: Answered) -> None:
        """Pass an answer to the waiting call."""
        answer = self._answers.get(event.packet_id)
        if answer is not None and not answer.done():
            answer.set_result(event)

    def lost(self) -> None:
        """Release waiting UNSUBSCRIBE calls: the packets are sent after the next connect."""
        for packet_id in self._leaving:
            self.answered(Answered(packet_id, [], ""))

    def end(self, error: ClientError) -> None:
        """Fail every waiting call."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)

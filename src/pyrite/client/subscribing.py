"""SUBSCRIBE and UNSUBSCRIBE of a client: asks, waits for answers, and asks again when a session is lost."""

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
    """The subscriptions that a client asks for; `soon` is called when there is something to be sent."""

    def __init__(self, protocol: Protocol, inbox: Inbox, soon: Callable[[], None]) -> None:
        self._protocol = protocol
        self._inbox = inbox
        self._soon = soon
        self._answers: dict[int, asyncio.Future[Answered]] = {}
        self._leaving: set[int] = set()
        """Those of them that are for an UNSUBSCRIBE."""
        self._last_identifier = 0

    @property
    def waiting(self) -> bool:
        """Whether an answer is being waited for."""
        return bool(self._answers)

    async def subscribe(self, subscription: Subscription, takes_unclaimed: bool) -> None:
        """Ask for a subscription; raises SubscribeError if the broker grants nothing of it."""
        for name in subscription.filters:
            if name in self._inbox:
                raise ClientError(
                    f"this client has subscribed to {name} already: a broker knows it only once"
                )
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
            # The broker may have granted it, or be about to.
            names = subscription.filters
            for name in names:
                self._inbox.leave(name)
            self._protocol.unsubscribe([name.encode() for name in names])
            self._soon()
            raise

    def _identify(self, subscription: Subscription) -> None:
        """Give a subscription a number, which tells messages of filters that overlap apart."""
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
        self._soon()
        try:
            return await answer
        except asyncio.CancelledError:
            self._protocol.abandon_request(packet_id)
            raise
        finally:
            self._answers.pop(packet_id, None)

    async def unsubscribe(self, names: Sequence[str], properties: Properties | None) -> dict[str, int]:
        """End subscriptions; returns the reasons of the filters that the broker did not let go of."""
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
        """Subscribe again, for the broker has no session."""
        for subscription in self._inbox:
            if subscription.granted:
                packet_id = self._protocol.subscribe(subscription.wishes, subscription.request())
                answer = self._answers[packet_id] = asyncio.get_running_loop().create_future()
                answer.add_done_callback(partial(self._subscribed_again, subscription, packet_id))
        self._soon()

    def _subscribed_again(
        self, subscription: Subscription, packet_id: int, answer: asyncio.Future[Answered]
    ) -> None:
        self._answers.pop(packet_id, None)
        if answer.cancelled() or answer.exception() is not None:
            return  # the client has ended, and with it the iterator
        try:
            self._grant(subscription, answer.result())
        except SubscribeError as error:
            self._inbox.remove(subscription)
            subscription.end(error)

    def answered(self, event: Answered) -> None:
        """Pass an answer on to who waits for it."""
        answer = self._answers.get(event.packet_id)
        if answer is not None and not answer.done():
            answer.set_result(event)

    def lost(self) -> None:
        """Let those go who wait to have left: the broker is told when it is back."""
        for packet_id in self._leaving:
            self.answered(Answered(packet_id, [], ""))

    def end(self, error: ClientError) -> None:
        """End everything that waits with an error."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)

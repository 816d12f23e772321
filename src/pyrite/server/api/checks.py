"""Checks of rights, topics and filters in requests."""

from __future__ import annotations

from pyrite.broker.core import Broker
from pyrite.broker.policy import Refusal
from pyrite.ipc.problem import Problem
from pyrite.topics.filters import SHARE_PREFIX, InvalidTopic, check_filter, check_topic


def checked_filter(broker: Broker, text: str) -> bytes:
    """Return a topic filter as bytes; raise Problem if it is invalid."""
    try:
        topic_filter = text.encode()
        check_filter(topic_filter, broker.limits.max_topic_levels)
        if topic_filter.startswith(SHARE_PREFIX):
            raise InvalidTopic("$share is for subscriptions only: omit it and the group")
    except (InvalidTopic, UnicodeEncodeError) as error:
        raise Problem(400, f"filter {text!r}: {error}") from None
    return topic_filter


def checked_topic(broker: Broker, text: str, parameter: str = "topic") -> bytes:
    """Return a topic as bytes; raise Problem, which names the parameter, if it is invalid."""
    try:
        topic = text.encode()
        check_topic(topic, broker.limits.max_topic_levels)
    except (InvalidTopic, UnicodeEncodeError) as error:
        raise Problem(400, f"{parameter} {text!r}: {error}") from None
    return topic


def check(refusal: Refusal | None) -> None:
    """Raise Problem if the broker's policy refuses a request."""
    if refusal is not None:
        raise Problem(403 if refusal.is_unauthorized else 409, refusal.text)

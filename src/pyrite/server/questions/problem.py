"""What questions have in common: how they are answered, and what can be wrong with them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from pyrite.broker.access import Credentials

logger = logging.getLogger(__name__)

Message = dict[str, Any]
Reply = Callable[[Any], None]
"""Is told what was found, as JSON has it; or the Problem that there is. Before that, Parts of a long list."""
Handler = Callable[[Credentials, Message, Reply], None]
"""Answers a question of someone who was let in: by its Reply, now or later, or by raising Problem, now."""
Later = Callable[..., object]
"""Has something called after some seconds."""


class Part(NamedTuple):
    """Some entries of a long list, and the bytes that go with them, one after the other."""

    entries: list[Message]
    attached: bytes


class Problem(Exception):
    """Why a question is not answered: a status of HTTP, and a text that says what is wrong."""

    def __init__(self, status: int, detail: str, after: float | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.after = after
        """Seconds after which it may be tried again, if that is known."""


def refused(action: str, topic: str) -> Problem:
    """Return the problem of someone who may not do what they ask for."""
    return Problem(403, f"not authorized: {action} {topic!r}")


def safely(call: Callable[[], object], reply: Reply) -> None:
    """Call what may raise Problem, or anything else: it is answered, and gets in no one's way."""
    try:
        call()
    except Problem as problem:
        reply(problem)
    except Exception:
        logger.exception("internal error")
        reply(Problem(500, "internal error"))

"""The will: the message that a client asks the broker to publish if its connection is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyrite.broker.access import Credentials
    from pyrite.broker.message import Batch


class Will:
    """A will and its author, whose rights are checked again when it is published."""

    __slots__ = ("author", "batch", "delay")

    def __init__(self, batch: Batch, delay: int, author: Credentials) -> None:
        self.batch = batch
        self.delay = delay
        self.author = author

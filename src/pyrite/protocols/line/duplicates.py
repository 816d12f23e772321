"""Duplicate Publish datagrams, sent again because their answer was lost: answer them, but do not publish
again."""

from __future__ import annotations

from collections import OrderedDict

MAX_REMEMBERED_ANSWERS = 256
"""Answers kept for each client: those to its last commands with an id."""


class RememberedAnswers:
    """The answers to the last Publish commands that had an id."""

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: OrderedDict[str, bytes | None] = OrderedDict()
        """Answers by id; None for a command that is not answered yet."""

    def is_duplicate(self, datagram: bytes) -> bool:
        """Return whether the datagram's id was seen before; remember the id if not."""
        request = _publish_id(datagram)
        if request is None:
            return False
        if request in self._answers:
            return True
        self._answers[request] = None
        if len(self._answers) > MAX_REMEMBERED_ANSWERS:
            self._answers.popitem(last=False)
        return False

    def answer_to(self, datagram: bytes) -> bytes | None:
        """Return the answer to a duplicate, or None if its original is not answered yet."""
        request = _publish_id(datagram)
        return None if request is None else self._answers.get(request)

    def remember(self, answer: bytes) -> None:
        """Keep an answer if its command had an id."""
        at = answer.rfind(b" id=")
        if at >= 0:
            request = answer[at + 4 :].strip().decode("utf-8", "replace")
            if request in self._answers:
                self._answers[request] = answer


def _publish_id(datagram: bytes) -> str | None:
    head = datagram.partition(b"\n")[0]
    at = head.rfind(b" id=")
    if at < 0 or not head[:7].lower().startswith(b"publish"):
        return None
    return head[at + 4 :].split(b" ")[0].decode("utf-8", "replace")

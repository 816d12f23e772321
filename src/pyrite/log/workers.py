"""Who does what takes time: a thread of its own beside the event loop, or the caller himself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


def raised(error: Exception) -> Any:
    """Stand for the result of a job that handles its own errors: there is none."""
    raise error


def attempt(job: Callable[[], Result], failed: Callable[[Exception], Result]) -> Result:
    """Do a job; if it raises, which it should not, the result is what `failed` makes of it."""
    try:
        return job()
    except Exception as error:
        if failed is not raised:
            logger.exception("internal error in the log")
        return failed(error)


class Worker:
    """Does a job at once, in the thread that asks: for tools, and for tests that want to see every step."""

    def run(
        self,
        job: Callable[[], Result],
        then: Callable[[Result], object],
        failed: Callable[[Exception], Result] = raised,
    ) -> None:
        """Do a job; `then` is told the result, in the thread that asked.

        If the job raises, that is what `failed` makes of the error: who waits for a job is always told.
        """
        then(attempt(job, failed))

    def stop(self) -> None:
        """Finish what was asked for, and do no more."""


class ThreadWorker(Worker):
    """Does one job after the other in a thread."""

    def __init__(
        self,
        name: str,
        post: Callable[[Callable[[], object]], object],
        prepare: Callable[[], object] | None = None,
    ) -> None:
        self._post = post
        """Has something called in the event loop's thread."""
        self._prepare = prepare
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(
        self,
        job: Callable[[], Result],
        then: Callable[[Result], object],
        failed: Callable[[Exception], Result] = raised,
    ) -> None:
        """Do a job when those before it are done; `then` is told the result, in the event loop's thread."""

        def work() -> None:
            result = attempt(job, failed)
            self._post(lambda: then(result))

        self._jobs.put(work)

    def _work(self) -> None:
        if self._prepare is not None:
            self._prepare()
        while True:
            work = self._jobs.get()
            if work is None:
                return
            try:
                work()
            except Exception:
                logger.exception("internal error in the log")
            del work  # and with it what the job was about, which may be much

    def stop(self, seconds: float | None = None) -> None:
        """Finish what was asked for, and end the thread; after some seconds it is left to itself."""
        self._jobs.put(None)
        self._thread.join(seconds)

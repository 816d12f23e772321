"""Who does what takes time: a thread of its own beside the event loop, or the caller himself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from pyrite.process.fair import NO_ONE, Asker, FairQueue

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
        asker: Asker = NO_ONE,
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
        goodbye: float | None = None,
    ) -> None:
        self._goodbye = goodbye
        """Seconds that the thread has to end, if it is not waited for however long it takes."""
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
        asker: Asker = NO_ONE,
    ) -> None:
        """Do a job when those before it are done; `then` is told the result, in the event loop's thread."""

        def work() -> None:
            result = attempt(job, failed)
            self._post(lambda: then(result))

        self._put(work, asker)

    def _put(self, work: Callable[[], None], asker: Asker) -> None:
        self._jobs.put(work)

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next job, and return it; None at the end."""
        return self._jobs.get()

    def _work(self) -> None:
        if self._prepare is not None:
            self._prepare()
        while True:
            work = self._next()
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
        self._thread.join(self._goodbye if seconds is None else seconds)


class FairThreadWorker(ThreadWorker):
    """Does jobs in a thread, in turns over users and their clients: none waits for all that another asked.

    Jobs must be short. At the end those that wait are discarded: what they would find is wanted no more.
    """

    def __init__(
        self, name: str, post: Callable[[Callable[[], object]], object], goodbye: float | None = None
    ) -> None:
        self._waiting: FairQueue[Callable[[], None]] = FairQueue()
        self._changed = threading.Condition()
        self._stopped = False
        super().__init__(name, post, goodbye=goodbye)

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._waiting)

    def _put(self, work: Callable[[], None], asker: Asker) -> None:
        with self._changed:
            if not self._stopped:
                self._waiting.put(asker, work)
                self._changed.notify()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._waiting and not self._stopped:
                self._changed.wait()
            return None if self._stopped else self._waiting.get()

    def stop(self, seconds: float | None = None) -> None:
        """Discard what waits, and end the thread; after some seconds it is left to itself."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            self._changed.notify()
        self._thread.join(self._goodbye if seconds is None else seconds)

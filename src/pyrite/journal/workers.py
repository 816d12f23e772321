"""Workers for blocking calls: a thread, or inline for tools and tests."""

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
    """The `failed` of a job that handles its own errors."""
    raise error


def attempt(job: Callable[[], Result], failed: Callable[[Exception], Result]) -> Result:
    """Run a job; if it raises, which it should not, return what `failed` makes of the error."""
    try:
        return job()
    except Exception as error:
        if failed is not raised:
            logger.exception("internal error in the log")
        return failed(error)


class Worker:
    """Runs each job at once, in the calling thread: for tools, and for tests that look at every step."""

    def run(
        self,
        job: Callable[[], Result],
        then: Callable[[Result], object],
        failed: Callable[[Exception], Result] = raised,
        asker: Asker = NO_ONE,
    ) -> None:
        """Run a job and call `then` with the result, in the calling thread.

        If the job raises, the result is what `failed` makes of the error: `then` is always called.
        """
        then(attempt(job, failed))

    def stop(self) -> None:
        """Finish the jobs that were requested, and accept no more."""


class ThreadWorker(Worker):
    """Runs jobs in a thread, in order."""

    def __init__(
        self,
        name: str,
        post: Callable[[Callable[[], object]], object],
        prepare: Callable[[], object] | None = None,
        goodbye: float | None = None,
    ) -> None:
        self._goodbye = goodbye
        """Seconds that `stop` waits for the thread; None to wait until it ends."""
        self._post = post
        """Calls something in the event loop's thread."""
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
        """Run a job after those before it, and call `then` with the result in the event loop's thread."""

        def work() -> None:
            result = attempt(job, failed)
            self._post(lambda: then(result))

        self._put(work, asker)

    def _put(self, work: Callable[[], None], asker: Asker) -> None:
        self._jobs.put(work)

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next job and return it; None at the end."""
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
            del work  # it may hold much memory

    def stop(self, seconds: float | None = None) -> None:
        """Finish the jobs that were requested and end the thread, waiting at most some seconds."""
        self._jobs.put(None)
        self._thread.join(self._goodbye if seconds is None else seconds)


class FairThreadWorker(ThreadWorker):
    """Runs jobs in a thread, in turns over users and their clients, so that none waits for another's backlog.

    Jobs must be short. Jobs that wait at the end are discarded: nobody needs their results any more.
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
        """The number of waiting jobs."""
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
        """Discard waiting jobs and end the thread, waiting at most some seconds."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            self._changed.notify()
        self._thread.join(self._goodbye if seconds is None else seconds)

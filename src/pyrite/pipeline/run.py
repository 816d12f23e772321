"""Runs of a pipeline: once, or again and again in one Spark; with what happens told as it happens."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any, cast

import pyspark.sql.connect.proto as pb2
from pyspark.errors import PySparkException
from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run
from pyspark.sql import SparkSession

from pyrite.client.log import FlightLog
from pyrite.pipeline.connection import credentials
from pyrite.pipeline.project import Project
from pyrite.pipeline.schemas import read_schemas
from pyrite.pipeline.session import pipeline_session
from pyrite.pipeline.state import NotAnnounced, announce
from pyrite.pipeline.tables import row_counts

STREAM = "default"
BRONZE = "bronze"
_STEP = re.compile(r"Flow '?(?:[\w]+\.)*(\w+)'? (?:is|has) (\w+)")
_CODE = re.compile(r"^\([\w.]+\)\s*|^\[[A-Z_.0-9]+\]\s*")


class RunError(Exception):
    """A run that failed; the text says why, and what to do."""


class BrokerGone(RunError):
    """The broker does not answer."""


Say = Callable[[str, str], None]
"""Is told the name of a flow, and what became of it: starting, running, completed, failed, ..."""


@dataclass(frozen=True)
class Outcome:
    """What a run has done."""

    seconds: float
    rows: dict[str, int]
    """How many rows each table has now."""
    added: dict[str, int]
    """How many more than before."""


def log_end(broker: str) -> int:
    """Return the offset after the last message of the log; BrokerGone if no one answers."""
    try:
        with FlightLog(broker, retry=0, **credentials()) as log:
            return log.bounds(STREAM).end
    except PermissionError as error:
        raise RunError(
            f"the broker refuses: {error}. Who the pipeline is comes from the environment: PYRITE_USERNAME "
            "and PYRITE_PASSWORD, or PYRITE_TOKEN"
        ) from None
    except (ConnectionError, TimeoutError, OSError) as error:
        raise BrokerGone(
            f"no broker answers at {broker}. Start one with `pyrite serve`, or name another with --broker "
            f"(or in spark-pipeline.yml, as pyrite.broker): {error}"
        ) from None


@dataclass
class Runner:
    """A pipeline, and the Spark it runs in."""

    project: Project
    spark: SparkSession
    broker: str
    note: Callable[[str], None]
    """Is told what a person should know."""

    figures: dict[str, float] = field(default_factory=lambda: {"batch": 0})
    """Of the last run: its number since Spark was started, its rows, seconds, and the messages that came
    meanwhile, alerts of its own among them."""
    _unheard: bool = False
    """Whether it was said that the broker does not want to know what the pipeline is doing."""

    def run(self, say: Say, full_refresh: bool = False) -> Outcome:
        """Process what is new since the last run; or, to `full_refresh`, everything again."""
        end = log_end(self.broker)
        self.tell("running")
        try:
            outcome = self._run(say, full_refresh)
        except RunError:
            self.tell("failed")
            raise
        rows = max(0, outcome.added.get(BRONZE, 0))
        self.figures = {
            "batch": self.figures["batch"] + 1,
            "rows": rows,
            "seconds": round(outcome.seconds, 2),
            "rows_per_second": round(rows / outcome.seconds, 1),
        }
        with contextlib.suppress(RunError):  # what was done is done, also if the broker has gone since
            self.figures["lag"] = max(0, log_end(self.broker) - end)
        self.tell("waiting")
        return outcome

    def tell(self, state: str) -> None:
        """Say what this pipeline is doing, to who wants to know."""
        try:
            announce(self.broker, self.project.folder.resolve().name, state, **self.figures)
        except NotAnnounced as error:
            if not self._unheard:
                self._unheard = True
                self.note(str(error))

    def _run(self, say: Say, full_refresh: bool) -> Outcome:
        began = time.monotonic()
        before = row_counts(self.project)
        specification = load_pipeline_spec(self.project.specification)
        configuration = dict(specification.configuration) | {"pyrite.broker": self.broker}
        try:
            graph = create_dataflow_graph(
                self.spark, specification.catalog, specification.database, configuration
            )
            try:
                registry = SparkConnectGraphElementRegistry(self.spark, graph)
                with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                    register_definitions(
                        self.project.specification, registry, specification, self.spark, graph
                    )
                for result in start_run(
                    self.spark, graph, [], full_refresh, [], dry=False, storage=specification.storage
                ):
                    if "pipeline_event_result" in result:
                        _tell(result["pipeline_event_result"].event.message, say)
            finally:
                _drop(self.spark, graph)
        except PySparkException as error:
            log_end(self.broker)  # which says so, if that is why
            raise RunError(_plain(error)) from None
        rows = row_counts(self.project)
        added = {name: count - before.get(name, 0) for name, count in rows.items()}
        return Outcome(time.monotonic() - began, rows, added)


@contextmanager
def started(project: Project, broker: str, master: str, note: Callable[[str], None]) -> Iterator[Runner]:
    """Start Spark for a project, if its broker answers and no one else is running it."""
    read_schemas(project.folder / "schemas.toml")
    log_end(broker)
    with _alone(project):
        configuration = project.configuration | {"pyrite.broker": broker}
        log = project.folder / "spark.log"
        with pipeline_session(project.settings, configuration, master, log) as spark:
            runner = Runner(project, spark, broker, note)
            try:
                yield runner
            finally:
                runner.tell("stopped")


def again_and_again(
    runner: Runner,
    say: Say,
    done: Callable[[Outcome], None],
    pause: float,
    stop: Event,
    waiting: Callable[[str], None],
) -> None:
    """Run whenever the log has grown, until `stop` is set. If the broker is away, wait for it."""
    seen = -1
    while not stop.is_set():
        try:
            end = log_end(runner.broker)
            if end != seen:
                done(runner.run(say))
                seen = end
        except BrokerGone as error:
            waiting(str(error))
        stop.wait(pause)


@contextmanager
def _alone(project: Project) -> Iterator[None]:
    """Let no one else run a project meanwhile."""
    descriptor = os.open(project.folder / "lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"{project.folder} is being run by another process; wait for it, or end it"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _tell(message: str, say: Say) -> None:
    found = _STEP.match(message)
    if found:
        say(found[1], found[2].lower())
    elif " SKIPPED " in message:
        say(message.split("'")[1].rpartition(".")[2], "skipped")


def _drop(spark: SparkSession, graph: str) -> None:
    """Forget a dataflow graph: it can be run only once."""
    command = pb2.Command()
    command.pipeline_command.drop_dataflow_graph.dataflow_graph_id = graph
    with contextlib.suppress(PySparkException):
        cast(Any, spark).client.execute_command(command)


def _plain(error: PySparkException) -> str:
    """Return what Spark says, without its code and without the stack."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\tat ")]
    text = _CODE.sub("", lines[0]) if lines else type(error).__name__
    # The last line of a Python traceback says what went wrong in a function of ours or the user's.
    raised = [line.strip() for line in lines if re.match(r"\s*[\w.]+(Error|Exception|Loss): ", line)]
    return raised[-1] if raised else text

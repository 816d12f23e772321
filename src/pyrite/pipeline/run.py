"""Runs a pipeline, once or continuously in the same Spark, and reports progress."""

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
from pyrite.pipeline.connection import PUBLISH, credentials
from pyrite.pipeline.errors import BrokerUnavailable, PipelineError
from pyrite.pipeline.project import Project
from pyrite.pipeline.schemas import read_schemas
from pyrite.pipeline.session import pipeline_session
from pyrite.pipeline.state import announce
from pyrite.pipeline.tables import messages_read, row_counts

STREAM = "default"
MESSAGES = "messages"
"""In the rows of tables: the number of messages that the pipeline has read."""
_STEP = re.compile(r"Flow '?(?:[\w]+\.)*(\w+)'? (?:is|has) (\w+)")
_CODE = re.compile(r"^\([\w.]+\)\s*|^\[[A-Z_.0-9]+\]\s*")


Say = Callable[[str, str], None]
"""Called with the name of a flow and its state: starting, running, completed, failed, ..."""


@dataclass(frozen=True)
class RunResult:
    """The result of a run."""

    seconds: float
    rows: dict[str, int]
    """Rows of each table."""
    added: dict[str, int]
    """Rows added to each table."""


def log_end(broker: str) -> int:
    """Return the offset after the last message of the log; raises BrokerUnavailable."""
    try:
        with FlightLog(broker, retry=0, **credentials()) as log:
            return log.bounds(STREAM).end
    except PermissionError as error:
        raise PipelineError(
            f"the broker refused: {error}. Set the pipeline's credentials in the environment: "
            "PYRITE_USERNAME and PYRITE_PASSWORD, or PYRITE_TOKEN"
        ) from None
    except (ConnectionError, TimeoutError, OSError) as error:
        raise BrokerUnavailable(
            f"no broker answers at {broker}. Start one with `pyrite serve`, or pass its address as "
            f"--broker (or pyrite.broker in spark-pipeline.yml): {error}"
        ) from None


@dataclass
class Runner:
    """A pipeline and the Spark that runs it."""

    project: Project
    spark: SparkSession
    broker: str
    note: Callable[[str], None]
    """Called with messages for the user."""

    figures: dict[str, float] = field(default_factory=lambda: {"batch": 0})
    """Status of the last run: its number since Spark was started, rows, seconds, and the messages that
    arrived in the meantime, including its own alerts.
    """
    _unheard: bool = False
    """True if the user was told that the broker refuses the pipeline's status."""

    def run(self, say: Say, full_refresh: bool = False) -> RunResult:
        """Process what is new since the last run or, with `full_refresh`, the whole log."""
        end = log_end(self.broker)
        self.tell("running")
        try:
            outcome = self._run(say, full_refresh)
        except PipelineError:
            self.tell("failed")
            raise
        rows = max(0, outcome.added.get(MESSAGES, 0))
        self.figures = {
            "batch": self.figures["batch"] + 1,
            "rows": rows,
            "seconds": round(outcome.seconds, 2),
            "rows_per_second": round(rows / outcome.seconds, 1),
        }
        with contextlib.suppress(PipelineError):  # the run is complete even if the broker has gone
            self.figures["lag"] = max(0, log_end(self.broker) - end)
        self.tell("waiting")
        return outcome

    def tell(self, state: str) -> None:
        """Publish the pipeline's status; a backtest has none."""
        if self.project.configuration.get(PUBLISH) == "false":
            return
        try:
            announce(self.broker, self.project.folder.resolve().name, state, **self.figures)
        except PipelineError as error:
            if not self._unheard:
                self._unheard = True
                self.note(str(error))

    def _counts(self) -> dict[str, int]:
        return row_counts(self.project) | {MESSAGES: messages_read(self.project)}

    def _run(self, say: Say, full_refresh: bool) -> RunResult:
        began = time.monotonic()
        before = self._counts()
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
            log_end(self.broker)  # raises a clearer error if the broker is unreachable
            raise PipelineError(_plain(error)) from None
        rows = self._counts()
        added = {name: count - before.get(name, 0) for name, count in rows.items()}
        return RunResult(time.monotonic() - began, rows, added)


@contextmanager
def started(project: Project, broker: str, master: str, note: Callable[[str], None]) -> Iterator[Runner]:
    """Start Spark for a project, if its broker answers and no other process runs it."""
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


def run_continuously(
    runner: Runner,
    say: Say,
    done: Callable[[RunResult], None],
    pause: float,
    stop: Event,
    waiting: Callable[[str], None],
) -> None:
    """Run whenever the log has grown, until `stop` is set; waits for an unreachable broker."""
    seen = -1
    while not stop.is_set():
        try:
            end = log_end(runner.broker)
            if end != seen:
                done(runner.run(say))
                seen = end
        except BrokerUnavailable as error:
            waiting(str(error))
        stop.wait(pause)


@contextmanager
def _alone(project: Project) -> Iterator[None]:
    """Lock the project against other processes."""
    descriptor = os.open(project.folder / "lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PipelineError(f"{project.folder} is being run by another process") from None
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
    """Delete a dataflow graph, which can run only once."""
    command = pb2.Command()
    command.pipeline_command.drop_dataflow_graph.dataflow_graph_id = graph
    with contextlib.suppress(PySparkException):
        cast(Any, spark).client.execute_command(command)


def _plain(error: PySparkException) -> str:
    """Return Spark's message without error code and stack trace."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\tat ")]
    text = _CODE.sub("", lines[0]) if lines else type(error).__name__
    # The last line of a Python traceback has the error in our code or the user's.
    raised = [line.strip() for line in lines if re.match(r"\s*[\w.]+(Error|Exception|Loss): ", line)]
    return raised[-1] if raised else text

"""The Spark of a pipeline: a Spark Connect server in this process, and a session with it."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from uuid import uuid4

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

from pyrite.pipeline.errors import PipelineError
from pyrite.spark.java import use_java

SETTINGS = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.sql.connect.serverStacktrace.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_CHATTER = re.compile(r"WARN|^(Using|Setting|To adjust|Error occurred during) ")


@contextmanager
def pipeline_session(
    settings: dict[str, str], configuration: dict[str, str], master: str, log: Path
) -> Iterator[SparkSession]:
    """Start Spark and yield a session.

    `settings` are those that Spark is started with, `configuration` those of the session. Spark's standard
    error goes to the file `log`. Raises PipelineError.
    """
    use_java()
    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = str(uuid4())
    port = _free_port()
    conf = SparkConf().setMaster(master).setAppName("pyrite pipeline")
    for key, value in (SETTINGS | settings | {"spark.connect.grpc.binding.port": str(port)}).items():
        conf.set(key, value)
    before = log.stat().st_size if log.exists() else 0
    try:
        with _standard_error_in(log):
            context = SparkContext(conf=conf)
            context.setLogLevel("ERROR")
    except Py4JJavaError as error:
        raise PipelineError(f"Spark did not start: {error.java_exception.getMessage()}") from None
    except PySparkException as error:  # Java has ended; the cause is in its log
        raise PipelineError(f"Spark did not start: {_first_words(log, before) or error}") from None
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # makes pyspark.sql.functions build Spark Connect columns
    try:
        connecting = ConnectSession.builder.remote(f"sc://localhost:{port}")
        for key, value in configuration.items():
            connecting = connecting.config(key, value)
        session = cast(SparkSession, connecting.getOrCreate())
        try:
            yield session
        finally:
            session.stop()
    finally:
        context.stop()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def _standard_error_in(path: Path) -> Iterator[None]:
    """Redirect the standard error of processes started in this block to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _first_words(log: Path, after: int) -> str:
    """Return the first line of a log that is not about start-up; later lines follow from it."""
    with log.open(errors="replace") as file:
        file.seek(after)
        lines = (line.strip() for line in file)
        return next((line for line in lines if line and not _CHATTER.search(line)), "")

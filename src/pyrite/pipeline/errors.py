"""Exceptions of pipelines."""

from __future__ import annotations

from pyrite.errors import PyriteError


class PipelineError(PyriteError):
    """A pipeline, or a process of the demo, failed."""

    exit_code = 1


class ProjectError(PipelineError):
    """The project is missing, or invalid."""

    exit_code = 2


class BrokerUnavailable(PipelineError):
    """The broker does not answer."""

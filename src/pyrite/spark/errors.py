"""Errors of the source and sink, without the traceback that would hide them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, TypeVar

from pyrite.errors import PyriteError

HIDE = "SPARK_HIDE_TRACEBACK"
"""Spark's Python worker reads this variable when it reports an error. The worker ends with the error, so the
setting affects no other code.
"""
M = TypeVar("M", bound=Callable[..., Any])


def plain_errors(method: M) -> M:
    """Have Spark show an error that speaks for itself in one line."""

    if isgeneratorfunction(method):

        @wraps(method)
        def generate(*arguments: Any, **named: Any) -> Iterator[Any]:
            try:
                yield from method(*arguments, **named)
            except (PyriteError, PermissionError, ConnectionError):
                _hide()
                raise

        return generate  # type: ignore[return-value]

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except (PyriteError, PermissionError, ConnectionError):
            _hide()
            raise

    return call  # type: ignore[return-value]


def _hide() -> None:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name.startswith("pyspark."):  # and not a program that made the source itself
        os.environ.setdefault(HIDE, "1")

"""Keeps Arrow from importing pandas."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


class _NoPandas:
    """An import hook that does not find pandas."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def keep_pandas_out() -> None:
    """Make Arrow try to import pandas now, and fail.

    Arrow imports pandas once, with the first array it creates. This takes as long as the rest of a broker's
    start, and would happen in the event loop. An explicit `import pandas` still works. Arrow also imports
    numpy.ma with the first numpy array, which takes 14 ms; that is done here, too.

    numpy gets one thread for linear algebra, which Pyrite does not use: more threads would busy-wait and
    take a third of the CPU time of the start.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    blocking = _NoPandas()
    sys.meta_path.insert(0, blocking)
    try:
        import numpy as np
        import pyarrow as pa

        pa.array([0])
        pa.array(np.zeros(1))
    finally:
        sys.meta_path.remove(blocking)

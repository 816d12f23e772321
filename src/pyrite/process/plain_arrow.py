"""Arrow without pandas: for processes that have no use for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


class _NoPandas:
    """Finds no pandas, wherever it is."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def keep_pandas_out() -> None:
    """Have Arrow look for pandas now, and not find it; it does so once, with the first array that it makes.

    Where pandas is installed that takes as long as all the rest of a broker's start, and the broker would do
    it in its event loop. Who imports pandas by name still gets it. With the first array that it makes of one
    of numpy's it imports numpy.ma, which takes 14 ms: that is done here, too.

    numpy, which comes with Arrow, gets one thread for its linear algebra: there is none here, and the others
    would spin for a while, a third of the processor's time at the start.
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

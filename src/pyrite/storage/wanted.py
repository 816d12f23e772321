"""The topics that a reader asks for, so that other topics need not be decoded, or even read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pyrite.topics.filters import bounds, matches

MAX_REMEMBERED_TOPICS = 100_000
"""Topics for which it is remembered whether they match."""


class Topics:
    """The topics that match one of several filters. Each topic is compared once."""

    def __init__(self, filters: Sequence[bytes]) -> None:
        self._patterns = [one for one in filters if b"+" in one or b"#" in one]
        self._exact = frozenset(filters) - frozenset(self._patterns)
        self._bounds = [bounds(one) for one in filters]
        self._known: dict[str, bool] = {}

    def __contains__(self, topic: str) -> bool:
        wanted = self._known.get(topic)
        if wanted is None:
            if len(self._known) >= MAX_REMEMBERED_TOPICS:
                self._known.clear()
            name = topic.encode()
            wanted = name in self._exact or any(matches(one, name) for one in self._patterns)
            self._known[topic] = wanted
        return wanted

    def any_of(self, topics: pa.Array) -> bool:
        """Return whether one of the topics matches."""
        return any(topic in self for topic in topics.unique().to_pylist())

    def any_between(self, least: str, most: str) -> bool:
        """Return whether a topic between two others, in the order of their bytes, could match."""
        low, high = least.encode(), most.encode()
        return any(first <= high and low <= last for first, last in self._bounds)

    def among(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the messages of a batch whose topics match."""
        wanted = self.mask(batch)
        return batch if wanted.all() else batch.filter(pa.array(wanted))

    def mask(self, batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
        """Return, for each message of a batch, whether its topic matches."""
        topics = batch.column("topic").dictionary_encode()
        wanted = np.array([name in self for name in topics.dictionary.to_pylist()], np.bool_)
        found: np.ndarray[Any, Any] = wanted[topics.indices.to_numpy()]
        return found


def wanted_by(filters: Sequence[bytes]) -> Topics | None:
    """Return the topics that match one of the filters; None for all topics."""
    return None if not filters or b"#" in filters else Topics(filters)

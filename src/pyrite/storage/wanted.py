"""Which topics a reader wants: so that what lies on disk for others need not be decoded, or even read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pyrite.topics.filters import bounds, matches

MANY = 100_000
"""Topics that are remembered as wanted or not."""


class Topics:
    """Topics that match one of several filters; each is looked at once."""

    def __init__(self, filters: Sequence[bytes]) -> None:
        self._filters = list(filters)
        self._bounds = [bounds(one) for one in filters]
        self._known: dict[str, bool] = {}

    def __contains__(self, topic: str) -> bool:
        wanted = self._known.get(topic)
        if wanted is None:
            if len(self._known) >= MANY:
                self._known.clear()
            name = topic.encode()
            wanted = self._known[topic] = any(matches(one, name) for one in self._filters)
        return wanted

    def any_of(self, topics: pa.Array) -> bool:
        """Tell whether one of the topics is wanted."""
        return any(topic in self for topic in topics.unique().to_pylist())

    def any_between(self, least: str, most: str) -> bool:
        """Tell whether a topic may be wanted that is neither before the one nor after the other."""
        low, high = least.encode(), most.encode()
        return any(first <= high and low <= last for first, last in self._bounds)

    def among(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return those messages of a batch that are wanted."""
        topics = batch.column("topic").dictionary_encode()
        wanted = np.array([name in self for name in topics.dictionary.to_pylist()], np.bool_)
        if wanted.all():
            return batch
        return batch.filter(pa.array(wanted[topics.indices.to_numpy()]))


def wanted_by(filters: Sequence[bytes]) -> Topics | None:
    """Return the topics that filters ask for; None if these are all."""
    return None if not filters or b"#" in filters else Topics(filters)

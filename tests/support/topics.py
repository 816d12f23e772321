"""Hypothesis strategies for topics and filters."""

from __future__ import annotations

from hypothesis import strategies as st

# Few names, so that filters and topics often match; one begins with $, which matters in the first level only.
LEVELS = st.sampled_from(["a", "b", "", "$x"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool).map(str.encode)


@st.composite
def filters(draw: st.DrawFn) -> bytes:
    levels = draw(st.lists(LEVELS | st.just("+"), min_size=0, max_size=4))
    if not levels or draw(st.booleans()):
        levels.append(draw(st.sampled_from(["#", "+", "a"])))
    return "/".join(levels).encode() or b"+"

"""The ratios as a picture: benchmarks/results.png."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .comparison import Comparison
from .scenarios import COMPILED_EPHEMERAL, EPHEMERAL, PYRITE, Scenario

COLOURS = {
    EPHEMERAL: "#8a8a8a",
    COMPILED_EPHEMERAL: "#8a8a8a",
    PYRITE: "#c9a227",
    "nats": "#3b7dd8",
    "nats-sync": "#7d4fb3",
    "mosquitto": "#3f9b5f",
    "amqtt": "#b07a2a",
}


def draw(comparison: Comparison, path: Path) -> None:
    """Draw a panel for each way of running Pyrite: how many times better it is than each of its peers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = {
        ours: [s for s in scenarios if any(comparison.value(s, ours, p) for p in comparison.peers(ours))]
        for ours, scenarios in comparison.views().items()
    }
    heights = [0.6 + 0.75 * len(scenarios) for scenarios in panels.values()]
    figure, axes = pyplot.subplots(
        len(panels), figsize=(11, 1 + sum(heights)), height_ratios=heights, squeeze=False
    )
    for (ours, scenarios), panel in zip(panels.items(), axes[:, 0], strict=True):
        _draw_panel(panel, comparison, ours, scenarios)
    version = comparison.versions.get("pyrite", "").partition(" ")[0]
    figure.suptitle(
        f"Pyrite {version} and its peers, {comparison.machine['cores']} cores: "
        "how many times better (right of 1) or worse; black mark: the floor",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_panel(axes: Any, comparison: Comparison, ours: str, scenarios: list[Scenario]) -> None:
    from matplotlib.patches import Patch

    peers = comparison.peers(ours)
    height = 0.8 / max(1, len(peers))
    axes.set_xscale("log")
    for row, scenario in enumerate(scenarios):
        for place, peer in enumerate(peers):
            ratio = comparison.value(scenario, ours, peer)
            if ratio is None:
                continue
            # Always "times better": a ratio of times or of memory is turned round.
            better = ratio if scenario.metric.more_is_better else 1 / ratio
            floor = scenario.floors.get((ours, peer))
            mark_at = 1.0 if floor is None else floor if scenario.metric.more_is_better else 1 / floor
            y = row + (place - (len(peers) - 1) / 2) * height
            reached = scenario.reached(ours, peer, ratio)
            axes.barh(y, better - 1, height * 0.9, left=1, color=COLOURS[peer])
            mark = {True: "  ✓", False: "  ✗", None: ""}[reached]
            axes.annotate(
                f"{better:.2g}x{mark}" if better < 100 else f"{better:,.0f}x{mark}",
                (max(better, mark_at, 1), y), xytext=(5, 0), textcoords="offset points", va="center",
                fontsize=8, color="#b00020" if reached is False else "black",
            )  # fmt: skip
            if floor is not None:
                axes.plot(
                    [mark_at, mark_at], [y - height * 0.45, y + height * 0.45], color="black", linewidth=2
                )
    axes.axvline(1, color="grey", linewidth=0.8)
    labels = [f"{scenario.id}\n({scenario.metric.title})" for scenario in scenarios]
    axes.set_yticks(range(len(scenarios)), labels, fontsize=8)
    axes.set_ylim(len(scenarios) - 0.5, -0.5)
    axes.xaxis.set_major_formatter(lambda value, _position: f"{value:g}x")
    axes.margins(x=0.12)
    handles = [Patch(color=COLOURS[peer]) for peer in peers]
    names = [f"{peer} {comparison.versions[peer].partition(' ')[0]}" for peer in peers]
    axes.legend(handles, names, loc="lower right", fontsize=9)
    axes.set_title(ours)

"""The ratios as a picture: benchmarks/results.png."""

from __future__ import annotations

from pathlib import Path

from .comparison import PEERS, Comparison

COLOURS = {"nats": "#3b7dd8", "mosquitto": "#3f9b5f", "amqtt": "#b07a2a"}


def draw(comparison: Comparison, path: Path) -> None:
    """Draw a bar for each scenario and peer: how many times better Pyrite is; a black mark is the floor."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    peers = [peer for peer in PEERS if peer in comparison.versions]
    height = 0.8 / max(1, len(peers))
    figure, axes = pyplot.subplots(figsize=(11, 1.2 + 0.75 * len(comparison.scenarios)))
    axes.set_xscale("log")
    for row, scenario in enumerate(comparison.scenarios):
        for place, peer in enumerate(peers):
            ratio = comparison.ratio(scenario, peer)
            if ratio is None:
                continue
            # Always "times better": a ratio of times or of memory is turned round.
            better = ratio if scenario.metric.more_is_better else 1 / ratio
            floor = scenario.floors.get(peer)
            mark_at = 1.0 if floor is None else floor if scenario.metric.more_is_better else 1 / floor
            y = row + (place - (len(peers) - 1) / 2) * height
            reached = scenario.reached(peer, ratio)
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
    axes.set_yticks(
        range(len(comparison.scenarios)),
        [f"{scenario.id}\n({scenario.metric.title})" for scenario in comparison.scenarios],
        fontsize=8,
    )
    axes.invert_yaxis()
    axes.set_xlabel(
        "Pyrite compared to the peer: how many times better (right of 1) or worse; black mark: the floor"
    )
    axes.xaxis.set_major_formatter(lambda value, _position: f"{value:g}x")
    axes.margins(x=0.12)
    handles = [Patch(color=COLOURS[peer]) for peer in peers]
    labels = [f"{peer} {comparison.versions[peer]}" for peer in peers]
    axes.legend(handles, labels, loc="lower right", fontsize=9)
    version = comparison.versions.get("pyrite", "").partition(" ")[0]
    axes.set_title(f"Pyrite {version} and its peers, {comparison.machine['cores']} cores")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)

"""The pictures of the study of TCP flow control."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from studies.report import BLUE, GREEN, GREY, ORANGE, RED, drawing, save, thinned
from studies.tcp_flow_control import TOPIC, Experiment, Hop

_SHADES = {"slow": "#f5e6c8", "stopped": "#f3d3d0"}


def _shade(experiment: Experiment, panels: list[Any]) -> None:
    for panel in panels:
        for name, begin, end in experiment.phases:
            if name in _SHADES:
                panel.axvspan(begin, end, color=_SHADES[name], zorder=0)
    for name, begin, end in experiment.phases:
        panels[0].annotate(
            f"reads: {name}" if name != "stopped" else "reads nothing",
            ((begin + end) / 2, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
            textcoords="offset points", ha="center", fontsize=8,
        )  # fmt: skip


def _steps(panel: Any, experiment: Experiment, hop: Hop, colour: str, label: str) -> None:
    points = thinned(list(zip(hop.windows.since(experiment.start), hop.windows.values, strict=True)))
    panel.step([x for x, _ in points], [y / 2**20 for _, y in points], where="post", color=colour,
               linewidth=1, label=label)  # fmt: skip


def _flight(panel: Any, experiment: Experiment, hop: Hop, colour: str, label: str) -> None:
    points = thinned(list(zip(hop.in_flight.since(experiment.start), hop.in_flight.values, strict=True)))
    panel.plot([x for x, _ in points], [y / 2**20 for _, y in points], ".", color=colour, markersize=2,
               label=label)  # fmt: skip


def _marks(
    panel: Any, experiment: Experiment, times: list[float], mark: str, colour: str, label: str
) -> None:
    if not times:
        return
    at = [one - experiment.start for one in times]
    panel.plot(
        at, [0] * len(at), mark, color=colour, markersize=6, label=f"{label} ({len(at)})", clip_on=False
    )


def draw_windows(experiment: Experiment, text: str, path: Path) -> None:
    """Draw the windows of both connections, and what is in flight."""
    figure, panels = drawing(3, f"Topic {TOPIC}, {text}")
    hop, other = experiment.to_subscriber, experiment.to_broker
    _shade(experiment, panels)
    _steps(panels[0], experiment, hop, BLUE, "window that the subscriber offers")
    _marks(panels[0], experiment, hop.events["zero_window"], "v", RED, "zero window")
    _marks(panels[0], experiment, hop.events["window_update"], "^", GREEN, "window update")
    _flight(panels[1], experiment, hop, BLUE, "in flight, broker → subscriber")
    _marks(panels[1], experiment, hop.events["window_full"], "x", RED, "window full")
    _marks(panels[1], experiment, hop.events["window_probe"], "|", ORANGE, "probe of a closed window")
    _steps(panels[2], experiment, other, GREY, "window that the broker offers the publisher")
    _flight(panels[2], experiment, other, GREEN, "in flight, publisher → broker")
    for panel in panels:
        panel.set_ylabel("MiB", fontsize=9)
    save(figure, panels, path)


def draw_broker(plain: Experiment, ack: Experiment, path: Path) -> None:
    """Draw messages and memory."""
    figure, panels = drawing(2, "Published and delivered, and the broker's memory", 2.6)
    _shade(plain, panels)
    for one, colour in ((plain, BLUE), (ack, GREEN)):
        panels[0].plot(one.delivered.since(one.start), one.delivered.values, color=colour,
                       label=f"delivered, {one.kind}")  # fmt: skip
        panels[1].plot(one.memory.since(one.start), [value / 2**20 for value in one.memory.values],
                       color=colour, label=f"memory, {one.kind}")  # fmt: skip
    panels[0].plot(
        plain.published.since(plain.start), plain.published.values, "--", color=GREY, label="published"
    )
    panels[0].set_ylabel("messages", fontsize=9)
    panels[1].set_ylabel("MiB", fontsize=9)
    save(figure, panels, path)


def draw_link(plain: Experiment, link: Experiment, path: Path) -> None:
    """Draw a slow reader beside a slow link."""
    figure, panels = drawing(3, "A slow reader (phase `slow`) and a slow link of the same speed")
    begin, end = plain.phase("slow")
    for one, colour, text in ((plain, BLUE, "slow reader"), (link, RED, "slow link")):
        _steps(panels[0], one, one.to_subscriber, colour, f"receive window, {text}")
        _flight(panels[1], one, one.to_subscriber, colour, f"in flight, {text}")
        found = [(at - one.start, info) for at, info in one.sockets if "cwnd" in info and "mss" in info]
        panels[2].plot([at for at, _ in found], [info["cwnd"] * info["mss"] / 2**20 for _, info in found],
                       color=colour, label=f"congestion window, {text}")  # fmt: skip
    for panel in panels:
        panel.axvspan(begin, end, color=_SHADES["slow"], zorder=0)
        panel.set_ylabel("MiB", fontsize=9)
        panel.set_yscale("symlog", linthresh=0.01)
        panel.set_ylim(bottom=0)
    save(figure, panels, path)

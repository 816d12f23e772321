"""All that was measured, and Pyrite's ratios to its peers."""

from __future__ import annotations

from dataclasses import dataclass, field

from .brokers import PYRITE
from .generator import Figures
from .measure import Series
from .scenarios import DELIVERED, Scenario

PEERS = ("nats", "mosquitto", "amqtt")
DISTURBED = 0.15  # of a core: where all else on the machine took more, a run tells little
LIMITED = 0.9  # a generator as busy as this may be what limits the broker


@dataclass
class Comparison:
    """The scenarios measured, their series by (run id, broker), and what else belongs in the report."""

    scenarios: list[Scenario]
    versions: dict[str, str]  # of the brokers that took part
    runs: int
    seconds: float
    machine: dict[str, str]
    absent: list[str] = field(default_factory=list)
    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    ceilings: dict[str, Figures] = field(default_factory=dict)
    routing: list[tuple[str, str]] = field(default_factory=list)

    def of(self, scenario: Scenario, broker: str) -> Series | None:
        """Return the runs that hold this scenario's figure for this broker, if it took part."""
        return self.series.get((scenario.run_id, broker))

    def figure(self, scenario: Scenario, broker: str) -> float | None:
        """Return the median of the figure that counts in this scenario."""
        series = self.of(scenario, broker)
        return series.median(scenario.metric.figure) if series else None

    def ratio(self, scenario: Scenario, peer: str) -> float | None:
        """Return Pyrite's figure divided by the peer's."""
        ours, theirs = self.figure(scenario, PYRITE.name), self.figure(scenario, peer)
        return ours / theirs if ours is not None and theirs else None

    def figure_text(self, scenario: Scenario, broker: str) -> str:
        """Return that figure as text, with an asterisk where the generator may have been the limit."""
        series, value = self.of(scenario, broker), self.figure(scenario, broker)
        if series is None or value is None:
            return "failed" if series and series.failures else ""
        busy = series.median("generator_busy") if scenario.metric is DELIVERED else None
        return scenario.metric.write(value) + ("*" if busy is not None and busy >= LIMITED else "")

    def ratio_text(self, scenario: Scenario, peer: str, yes: str, no: str) -> str:
        """Return that ratio as text and, where there is a floor, whether it is reached."""
        ratio = self.ratio(scenario, peer)
        if ratio is None:
            return ""
        reached = scenario.reached(peer, ratio)
        mark = "" if reached is None else f" {yes if reached else no} ({scenario.floor_text(peer)})"
        return f"{ratio:.2f}x{mark}"

    def missed(self) -> list[str]:
        """Return a sentence for each floor that was not reached, and for each that could not be compared."""
        sentences = []
        for scenario in self.scenarios:
            for peer in scenario.floors:
                ratio = self.ratio(scenario, peer)
                wanted = scenario.floor_text(peer)
                if ratio is None:
                    sentences.append(f"`{scenario.id}` against {peer} ({wanted}): not measured")
                elif not scenario.reached(peer, ratio):
                    sentences.append(f"`{scenario.id}` against {peer}: {ratio:.2f}x, wanted {wanted}")
        return sentences

    def disturbance(self) -> str:
        """Return a sentence if other programs were running during the measurements, else nothing."""
        shares = [run.get("other_busy", 0) for series in self.series.values() for run in series.runs]
        disturbed = sum(share > DISTURBED for share in shares)
        if not disturbed:
            return ""
        return (
            f"The machine was not quiet: in {disturbed} of {len(shares)} runs other programs took more than "
            f"{DISTURBED:.0%} of a core. That slows most whoever uses several cores (nats-server), and the "
            "latencies of all, so these ratios are not to be relied on."
        )

    def faults(self) -> list[str]:
        """Return a sentence for each broker and scenario in which a message was lost, repeated or such."""
        sentences = []
        for (run_id, broker), series in self.series.items():
            counts = ", ".join(f"{n:,} {fault.replace('_', ' ')}" for fault, n in series.faults().items())
            if counts:
                sentences.append(f"`{run_id}`, {broker}: {counts}")
            sentences.extend(f"`{run_id}`, {broker}: a run failed: {text}" for text in series.failures)
        return sentences

"""All that was measured, and Pyrite's ratios to its peers."""

from __future__ import annotations

from dataclasses import dataclass, field

from .generator import Figures
from .measure import Series
from .scenarios import (
    ACKNOWLEDGED,
    ALL,
    COMPILED,
    COMPILED_EPHEMERAL,
    DELIVERED,
    EPHEMERAL,
    ITSELF,
    PYRITE,
    Scenario,
)

# Each way of running Pyrite, and the brokers that it is compared with.
VIEWS = {
    PYRITE: (EPHEMERAL, "nats-sync", "nats", "mosquitto"),
    COMPILED: (COMPILED_EPHEMERAL, PYRITE, "nats-sync", "nats", "mosquitto"),
    EPHEMERAL: ("nats", "mosquitto", "amqtt"),
    COMPILED_EPHEMERAL: (EPHEMERAL, "nats", "mosquitto", "amqtt"),
}
BY_ID = {scenario.id: scenario for scenario in ALL}
BROKERS = {peer for ours, peers in VIEWS.items() for peer in (ours, *peers)}
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

    def peers(self, ours: str) -> list[str]:
        """Return the brokers it is compared with that took part."""
        return [peer for peer in VIEWS[ours] if peer in self.versions]

    def views(self) -> dict[str, list[Scenario]]:
        """Return each way of running Pyrite that took part, with its scenarios."""
        views = {
            ours: [scenario for scenario in self.scenarios if ours in scenario.brokers] for ours in VIEWS
        }
        return {ours: rows for ours, rows in views.items() if rows and ours in self.versions}

    def of(self, scenario: Scenario, broker: str) -> Series | None:
        """Return the runs that hold this scenario's figure for this broker, if it took part."""
        return self.series.get((scenario.run_id, broker)) if broker in scenario.brokers else None

    def figure(self, scenario: Scenario, broker: str) -> float | None:
        """Return the median of the figure that counts in this scenario."""
        series = self.of(scenario, broker)
        return series.median(scenario.metric.figure) if series else None

    def value(self, scenario: Scenario, ours: str, peer: str) -> float | None:
        """Return our figure, divided by the peer's or by ours in the scenario "@ID" unless it is ITSELF."""
        mine = self.figure(scenario, ours)
        if peer == ITSELF:
            return mine
        is_scenario = peer.startswith("@")
        theirs = self.figure(BY_ID[peer[1:]], ours) if is_scenario else self.figure(scenario, peer)
        return mine / theirs if mine is not None and theirs else None

    def figure_text(self, scenario: Scenario, broker: str) -> str:
        """Return that figure as text, with an asterisk where the generator may have been the limit."""
        series, value = self.of(scenario, broker), self.figure(scenario, broker)
        if series is None or value is None:
            return "failed" if series and series.failures else ""
        busy = series.median("generator_busy") if scenario.metric in (DELIVERED, ACKNOWLEDGED) else None
        return scenario.metric.write(value) + ("*" if busy is not None and busy >= LIMITED else "")

    def verdict(self, scenario: Scenario, ours: str, peer: str, yes: str, no: str) -> str:
        """Return whether the floor is reached, and the floor, as text; nothing where there is none."""
        value = self.value(scenario, ours, peer)
        reached = None if value is None else scenario.reached(ours, peer, value)
        return "" if reached is None else f" {yes if reached else no} ({scenario.floor_text(ours, peer)})"

    def own_verdicts(self, scenario: Scenario, ours: str, yes: str, no: str) -> str:
        """Return the verdicts on our figure alone, and on its share of our figures in other scenarios."""
        text = self.verdict(scenario, ours, ITSELF, yes, no)
        for one, peer in scenario.floors:
            ratio = self.value(scenario, ours, peer) if one == ours and peer.startswith("@") else None
            if ratio is not None:
                text += f"; {ratio:.2f}x of {peer[1:]}{self.verdict(scenario, ours, peer, yes, no)}"
        return text

    def ratio_text(self, scenario: Scenario, ours: str, peer: str, yes: str, no: str) -> str:
        """Return our ratio to this peer as text and, where there is a floor, whether it is reached."""
        ratio = self.value(scenario, ours, peer)
        if ratio is None:
            return ""
        return scenario.value_text(peer, ratio) + self.verdict(scenario, ours, peer, yes, no)

    def missed(self) -> list[str]:
        """Return a sentence for each floor that was not reached, and for each that could not be compared."""
        sentences = []
        for scenario in self.scenarios:
            for ours, peer in scenario.floors:
                value = self.value(scenario, ours, peer)
                wanted = scenario.floor_text(ours, peer)
                if ours not in self.versions or peer in BROKERS - set(self.versions):
                    continue
                against = f"`{scenario.id}`, {ours}" + (
                    f" against {peer.lstrip('@')}" if peer != ITSELF else ""
                )
                if value is None:
                    sentences.append(f"{against}: not measured (wanted {wanted})")
                elif not scenario.reached(ours, peer, value):
                    sentences.append(f"{against}: {scenario.value_text(peer, value)}, wanted {wanted}")
        return sentences

    def disturbance(self) -> str:
        """Return a sentence if other programs were running during the measurements, else nothing."""
        shares = [run.get("other_busy", 0) for series in self.series.values() for run in series.runs]
        disturbed = sum(share > DISTURBED for share in shares)
        if not disturbed:
            return ""
        return (
            f"The machine was not quiet: in {disturbed} of {len(shares)} runs other programs took more than "
            f"{DISTURBED:.0%} of a core. That slows nats-server most, which uses several cores, and all "
            "latencies: do not rely on these ratios."
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

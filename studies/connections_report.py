"""The report of the study of connections: its pictures, and its answers in words."""

from __future__ import annotations

from pathlib import Path

from studies import machine
from studies.connections import (
    BROKER_DESCRIPTORS,
    CLIENT_DESCRIPTORS,
    DEFAULT_MAX_CONNECTIONS,
    MAX_CONNECTIONS,
    NOTHING,
    PORTS,
    STEP,
    TIME,
    Measured,
    Options,
    Outcome,
    Say,
    measure,
)
from studies.report import BLUE, GREEN, GREY, Report, drawing, number, save, size

NAME = "connections"


def study(options: Options, folder: Path, say: Say) -> Report:
    """Run the study and write its report."""
    available = machine.meminfo("MemAvailable")
    measured = measure(options, say)
    say("the report")
    limits = machine.limits()
    ports = ports_of(limits["net.ipv4.ip_local_port_range"])
    per_client = memory_per_client(measured)
    figures = {
        "options": vars(options),
        **measured.figures(),
        "memory_per_client": per_client,
        "memory_available": available,
        "machine": limits,
    }
    report = Report(NAME, folder, figures)
    report.title("Connections: how many TCP clients at once, and what sets the limit")
    report.say(
        "Clients of the line protocol connect over loopback, one after the other, and each sends a Ping; "
        "one counts when its Pong has come, as only then is it a client of the broker and not just in the "
        "kernel's queue. They stay, idle, until the next one is refused. One limit after the other is "
        "lowered, so that it is seen, and not guessed, what it looks like when that limit is the one that "
        f"is reached. Then {number(options.clients)} are to come in, with nothing lowered."
    )
    _answers(report, options, measured, per_client, available, ports)
    _settings(report, measured)
    _memory(report, measured, per_client, available)
    report.machine(limits)
    report.write()
    return report


def ports_of(text: str) -> int:
    """Return how many ports a range has, as the kernel writes it; 0 if it is not known."""
    words = text.split()
    return int(words[1]) - int(words[0]) + 1 if len(words) == 2 and words[0].isdecimal() else 0


def memory_per_client(measured: Measured) -> dict[str, float]:
    """Return the bytes that one more client takes, in the broker and in the kernel."""
    first, last = measured.memory[0], measured.memory[-1]
    clients = max(1.0, last["clients"] - first["clients"])
    return {kind: max(0.0, (last[kind] - first[kind]) / clients) for kind in ("broker", "kernel")}


def _by_limit(measured: Measured, limit: str) -> Outcome | None:
    return next((one for one in measured.outcomes[:-1] if one.stopped_by == limit), None)


def _answers(
    report: Report,
    options: Options,
    measured: Measured,
    per_client: dict[str, float],
    available: int,
    ports: int,
) -> None:
    report.section("In short")
    many = measured.outcomes[-1]
    stop = {
        NOTHING: f"All {number(many.clients)} came in that were asked for; nothing stopped them.",
        TIME: f"{number(many.clients)} came in before time was up; nothing else stopped them.",
    }.get(
        many.stopped_by,
        f"**{number(many.clients)} clients at once, and then: {many.stopped_by}.**",
    )
    if many.stopped_by == BROKER_DESCRIPTORS:
        own = many.descriptors - many.clients
        stop += (
            f" The broker's process may have {number(many.descriptor_limit)} descriptors open on this "
            f"machine; {own} were its own (the log, the listeners, the event loop), and each client took "
            "one."
        )
        if many.descriptors < many.descriptor_limit:
            kept = many.descriptor_limit - many.descriptors
            stop += f" It keeps the last {number(kept)} free, for its log."
    points = [stop]
    ports_one = next((o for o in measured.outcomes if o.setting.startswith("few ports, one")), None)
    ports_four = next((o for o in measured.outcomes if o.setting.startswith("few ports, four")), None)
    if ports_one is not None and ports_four is not None:
        points.append(
            "**Ports?** A limit of the client, not of the broker: a connection is two addresses and two "
            f"ports, and the broker's end is always the same port. With {number(ports_one.set_to or 0)} "
            f"ports and one address, {number(ports_one.clients)} clients came in{_named(ports_one, PORTS)}; "
            "with four addresses and the same ports, "
            f"{number(ports_four.clients)}{_named(ports_four, PORTS)}. One address on this machine has "
            f"{number(ports)} ports to connect from; clients on many machines never meet this limit."
        )
    else:
        points.append(f"**Ports?** Not tried: {measured.ports_left_out}.")
    broker, client = _by_limit(measured, BROKER_DESCRIPTORS), _by_limit(measured, CLIENT_DESCRIPTORS)
    if broker is not None:
        points.append(
            f"**Descriptors?** The first limit that a broker meets. With {number(broker.set_to or 0)} of "
            f"them, {number(broker.clients)} clients came in. "
            + (
                "The next one is not refused: the kernel completes its handshake and it waits in the queue "
                "of the listening socket, without an answer, until another leaves. "
                if _unanswered(broker)
                else "The next one is refused: the broker takes it and closes it at once, as it keeps some "
                "for its log. "
            )
            + (
                "A client's process that has used up its own gets no further one from its kernel "
                f"(`{client.seen_as}`)."
                if client
                else ""
            )
        )
    both = per_client["broker"] + per_client["kernel"]
    points.append(
        f"**Memory?** One more idle client takes {size(per_client['broker'])} in the broker"
        + (
            f" and, for both ends of its connection, {size(per_client['kernel'])} in the kernel. The "
            f"{size(available)} that were available would do for about {number(available / both)} clients "
            "with both ends on this machine: memory is not what stops idle clients here."
            if per_client["kernel"]
            else "; what it takes in the kernel could not be read."
        )
    )
    points.append(_at_the_limit(measured))
    report.points(points)
    report.find("clients at once", number(many.clients))
    report.find("stopped by", many.stopped_by)
    report.find(
        "memory a client: broker, kernel", f"{size(per_client['broker'])}, {size(per_client['kernel'])}"
    )
    for one in measured.outcomes[:-1]:
        report.find(one.setting, f"{number(one.clients)}: {one.stopped_by}")


def _unanswered(outcome: Outcome) -> bool:
    return outcome.stopped_by == BROKER_DESCRIPTORS and outcome.seen_as.endswith("no answer")


def _named(outcome: Outcome, expected: str) -> str:
    return "" if outcome.stopped_by == expected else f" (stopped by: {outcome.stopped_by})"


def _at_the_limit(measured: Measured) -> str:
    full = [one for one in measured.outcomes if one.stopped_by == BROKER_DESCRIPTORS]
    other = [one for one in measured.outcomes if one.stopped_by != BROKER_DESCRIPTORS]
    failed = [one for one in full if one.published != "PubAck"]
    text = "**And those who are connected?** "
    if failed:
        text += (
            "When the broker's descriptors are used up by clients, none is left for its log: a client that "
            f"was connected already was answered `{failed[0].published}` to a Publish. Set "
            "`limits.max_connections` some hundred below the descriptors that the process may have: then "
            "the broker refuses the client that is one too many, and goes on writing. "
        )
    elif full:
        text += (
            "With no descriptor left for another client, a Publish of one that was connected was answered "
            "with PubAck: the log has what it needs. "
        )
    if other and all(one.published == "PubAck" for one in other):
        text += "At each of the other limits a Publish was answered with PubAck. "
    if all(one.recovered for one in measured.outcomes):
        text += "After the others had left, a new client came in, each time."
    else:
        stuck = ", ".join(one.setting for one in measured.outcomes if not one.recovered)
        text += f"After the others had left, a new client did not come in within 5 s where: {stuck}."
    return text


def _settings(report: Report, measured: Measured) -> None:
    report.section("One limit after the other")
    report.picture("limits", "clients reached in each setting", lambda path: _draw_limits(measured, path))
    rows = []
    for one in measured.outcomes:
        wire = [
            number(one.wire[key])
            for key in ("syn", "syn_ack", "reset_of_broker", "fin_of_broker")
            if one.wire
        ]
        rows.append(
            [
                one.setting,
                "" if one.set_to is None else number(one.set_to),
                number(one.clients),
                one.stopped_by,
                f"`{one.seen_as}`" if one.seen_as else "",
                " / ".join(wire),
                one.published.partition(" Publish:")[0],
            ]
        )
    head = ("setting", "limit", "clients", "stopped by", "what the client saw",
            "SYN / SYN+ACK / RST / FIN of the broker", "a Publish then")  # fmt: skip
    report.table(head, rows)
    report.say(
        "The packets (tshark, from before the first client of the crowd to the refusal) tell the limits "
        "apart too. Where the client's own descriptors or ports are used up, there is no SYN: nothing "
        "leaves the client. Where it is a limit of the broker, SYN is answered, as the kernel does that by "
        "itself.",
        "Then nothing comes, where the broker has no descriptor to accept it with."
        if any(_unanswered(one) for one in measured.outcomes)
        else "",
        "Where the broker refuses it, it is reset or closed at once."
        if _by_limit(measured, MAX_CONNECTIONS)
        else "",
        "One of the clients was there before the capture began; clients connect in groups of 100, so up to "
        "100 more than came in may have tried.",
    )
    if measured.ports_left_out:
        report.say(f"Ports were not tried: {measured.ports_left_out}.")


def _draw_limits(measured: Measured, path: Path) -> None:
    figure, panels = drawing(1, "Clients connected at once, and what stopped the next one", 3.4)
    panel = panels[0]
    names = [one.setting for one in measured.outcomes]
    values = [one.clients for one in measured.outcomes]
    panel.barh(range(len(names)), values, color=[*[BLUE] * (len(names) - 1), GREEN])
    for row, one in enumerate(measured.outcomes):
        panel.annotate(
            f" {number(one.clients)}: {one.stopped_by}", (one.clients, row), va="center", fontsize=8
        )
    panel.set_yticks(range(len(names)), names, fontsize=8)
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.set_xlim(100, max(values) * 60)
    save(figure, panels, path, "clients")


def _memory(report: Report, measured: Measured, per_client: dict[str, float], available: int) -> None:
    report.section("Memory")
    report.picture("memory", "memory by number of clients", lambda path: _draw_memory(measured, path))
    last = measured.memory[-1]
    report.say(
        f"From 1 to {number(last['clients'])} clients the broker's memory grew from "
        f"{size(measured.memory[0]['broker'])} to {size(last['broker'])}, and the kernel's objects that "
        "connections are made of (sockets, inodes, open files, watched descriptors: /proc/slabinfo) by "
        f"{size(last['kernel'] - measured.memory[0]['kernel'])}. Both ends of every connection are on this "
        "machine, so about half of the kernel's share would be the broker's own if the clients were "
        f"elsewhere. The broker's memory is looked at every {number(STEP)} clients.",
        "These clients say nothing and hear nothing: what waits to be read or sent takes memory of its "
        "own, up to `max_waiting_bytes` (16 MiB) in the broker for a client that does not read what it is "
        "sent, and `tcp_rmem` and `tcp_wmem` in the kernel. A crowd of such clients meets the limit of "
        "memory long before.",
    )
    waiting = available / (16 * 2**20)
    report.say(
        f"With the {size(available)} that were available here, {number(waiting)} clients that do not read "
        "could each have 16 MiB wait for them; with idle ones, `limits.max_connections` "
        f"({number(DEFAULT_MAX_CONNECTIONS)} by default) would need "
        f"{size(DEFAULT_MAX_CONNECTIONS * per_client['broker'])} of the broker's memory."
    )


def _draw_memory(measured: Measured, path: Path) -> None:
    figure, panels = drawing(1, "Memory by number of idle clients, above what it was with one", 3.2)
    clients = [one["clients"] for one in measured.memory]
    for kind, colour, text in (("broker", BLUE, "broker"), ("kernel", GREY, "kernel, both ends")):
        grown = [(one[kind] - measured.memory[0][kind]) / 2**20 for one in measured.memory]
        panels[0].plot(clients, grown, "o-", color=colour, markersize=3, label=text)
    panels[0].set_ylabel("MiB", fontsize=9)
    save(figure, panels, path, "clients")

"""The report of the study of loss: its pictures, and its answers in words."""

from __future__ import annotations

from pathlib import Path

from studies import machine
from studies.report import BLUE, GREEN, GREY, ORANGE, RED, Report, drawing, number, save, size
from studies.udp_loss import FLOOD, TOPIC, Options, Run, Say, measure
from studies.udp_raw import Raw

NAME = "udp-loss"
TITLES = {
    "never": "never reads",
    "flood": "never reads, publisher at full speed",
    "slow": "reads a tenth",
    "ack": "`ack`, reads only in the end",
}
_PLACES = (
    ("received", "read by the subscriber", GREEN),
    ("unread", "sent to it, and never read", GREY),
    ("waiting", "still waiting in the broker", BLUE),
    ("dropped_by_broker", "dropped by the broker, and counted", ORANGE),
    ("dropped_before_broker", "dropped at the broker's socket", RED),
)


def study(options: Options, folder: Path, say: Say) -> Report:
    """Run the study and write its report."""
    raw, runs = measure(options, say)
    say("the report")
    limits = machine.limits()
    figures = {
        "options": vars(options),
        "raw": [one.figures() for one in raw],
        "runs": [one.figures() for one in runs],
        "machine": limits,
    }
    report = Report(NAME, folder, figures)
    report.title("UDP: a subscriber that never reads, against a publisher that never stops")
    report.say(
        f"{number(options.rate)} messages of {number(options.size)} bytes a second, for {options.seconds:g} "
        f"s, over loopback: first with plain sockets and no broker, then through Pyrite (topic `{TOPIC}`); "
        "over UDP, and over TCP beside it. What is lost is not estimated: the sender counts what it sent, "
        "tshark what was on the wire, the kernel what it dropped at each socket (`drops` in "
        "/proc/net/udp), the broker what it handled and dropped ($SYS), and in the end the subscriber "
        "reads what its buffer had kept. The sums are those of what was sent."
    )
    by_name = {(one.protocol, one.name): one for one in runs}
    _answers(report, raw[0], raw[1], by_name)
    _raw(report, options, raw[0], raw[1])
    _runs(report, options, runs, by_name)
    report.machine(limits)
    report.write()
    return report


def title(run: Run) -> str:
    """Return what an experiment is called."""
    late = run.protocol == "TCP" and run.name == "never"
    return f"{run.protocol}: {'reads only in the end' if late else TITLES[run.name]}"


def share(part: float, whole: float) -> str:
    """Write a share of a whole."""
    return f"{part / whole:.1%}" if whole else "none"


def _answers(report: Report, udp: Raw, tcp: Raw, runs: dict[tuple[str, str], Run]) -> None:
    report.section("In short")
    never, flood = runs["UDP", "never"], runs["UDP", "flood"]
    slow, ack = runs["UDP", "slow"], runs["UDP", "ack"]
    plain, lasting = runs["TCP", "never"], runs["TCP", "ack"]
    points = [
        (
            f"**Are packets lost?** {'Yes' if udp.dropped else 'No'}: of {number(udp.sent)} datagrams to a "
            f"plain socket that no one reads from, {number(udp.dropped)} ({share(udp.dropped, udp.sent)})."
        ),
        _where(udp),
        (
            f"**And TCP?** Loses nothing, and stops the sender: of {number(tcp.due)} messages that were "
            f"due, its kernel took {number(tcp.sent)}, until both buffers were full and the window was zero "
            f"({number(tcp.zero_windows)} times announced); all {number(tcp.kept)} of them were there when "
            "the receiver read. "
            if tcp.kept == tcp.sent and tcp.refused
            else f"**And TCP?** Of {number(tcp.sent)} messages that the kernel took, {number(tcp.kept)} "
            "were read in the end. "
        ),
        (
            "**Through the broker, over UDP,** a Message is sent again until it is acknowledged, and at "
            f"most 32 are under way: to a subscriber that never reads, {number(never.transmitted)} of "
            f"{number(never.handled)} messages were sent, in {number(never.datagrams)} datagrams; "
            f"{number(never.datagrams_dropped)} of those datagrams were dropped at its socket. "
            f"{number(never.waiting)} messages waited in the broker (at most 1 MiB), and it dropped "
            f"{number(never.dropped_by_broker)} and counted them."
            + (
                " So what is lost is lost in the broker's bounded queue, where it is known, and the network "
                "is not filled for someone who does not listen."
                if never.dropped_by_broker
                else ""
            )
        ),
        _before_the_broker(never, flood),
        (
            f"**A slow subscriber** that took a tenth of what came has read {number(slow.received)} of "
            f"{number(slow.sent)}; {number(slow.dropped_by_broker)} were dropped by the broker."
        ),
        (
            "**Nothing need be lost, over UDP either.** "
            if ack.received == ack.handled
            else "**With acknowledgements, over UDP.** "
        )
        + (
            "With `Subscribe ... ack`, the subscriber that read "
            f"nothing until the publisher had ended has then been sent {number(ack.received)} of "
            f"{number(ack.handled)} messages from the log, in {number(ack.datagrams)} datagrams. Over TCP "
            f"with `ack` it was {number(lasting.received)} of {number(lasting.handled)}."
        ),
        (
            f"**TCP through the broker, without `ack`:** {number(plain.received)} of {number(plain.sent)} "
            "messages were read in the end: what the buffers of the kernel and 16 MiB in the broker hold"
            + (
                f"; {number(plain.dropped_by_broker)} beyond that were dropped by the broker. "
                if plain.dropped_by_broker
                else ", which was enough here. "
            )
            + f"Over UDP the same subscriber has {number(never.received)}."
        ),
    ]
    report.points(points)
    report.find(
        "plain UDP: sent, kept, dropped", f"{number(udp.sent)}, {number(udp.kept)}, {number(udp.dropped)}"
    )
    report.find("plain TCP: due, taken, read", f"{number(tcp.due)}, {number(tcp.sent)}, {number(tcp.kept)}")
    for one in runs.values():
        lost = one.dropped_by_broker + one.dropped_before_broker
        text = f"{number(one.sent)} sent, {number(one.received)} read, {number(lost)} dropped"
        report.find(title(one).replace("`", ""), text)


def _where(udp: Raw) -> str:
    if not udp.dropped:
        return (
            f"**Where?** Nowhere, this time: the receive buffer ({size(udp.buffer)}) had room for them all."
        )
    all_seen = udp.on_the_wire == udp.sent
    return (
        "**Where?** At the receiver's socket. "
        + (f"All of them were on the wire ({number(udp.on_the_wire)} in the capture)" if all_seen else "")
        + ("" if all_seen else f"{number(udp.on_the_wire)} of them are in the capture")
        + (f", the sender's kernel refused {number(udp.refused)} more" if udp.refused else "")
        + ", and the sender learns nothing of it. The receive buffer "
        f"({size(udp.buffer)}, which counts the memory of each datagram and not only its bytes) kept the "
        f"first {number(udp.kept)}, and the kernel threw away what came after."
    )


def _before_the_broker(never: Run, flood: Run) -> str:
    text = "**On the way to the broker** "
    if never.dropped_before_broker == 0:
        text += (
            f"nothing was lost at that rate: {number(never.acknowledged)} of {number(never.sent)} were "
            "acknowledged. "
        )
    else:
        text += (
            f"{number(never.dropped_before_broker)} of {number(never.sent)} datagrams were dropped at the "
            f"broker's socket; {number(never.acknowledged)} were acknowledged. "
        )
    if flood.dropped_before_broker:
        text += (
            f"A publisher at full speed, without acknowledgements, overran it: of {number(flood.sent)} "
            f"datagrams the broker's socket dropped {number(flood.dropped_before_broker)} "
            f"({share(flood.dropped_before_broker, flood.sent)}), and the publisher cannot know. Who wants "
            "to know leaves `noack` away, and sends again what was not acknowledged."
        )
    else:
        text += f"Nor was it at full speed: {number(flood.handled)} of {number(flood.sent)} were handled."
    if flood.ignored > 0 or never.ignored > 0:
        left = max(flood.ignored, never.ignored)
        text += f" {number(left)} more reached the broker while its disk was behind, and were left."
    return text


def _raw(report: Report, options: Options, udp: Raw, tcp: Raw) -> None:
    report.section("Plain sockets, side by side")
    report.picture("raw", "UDP and TCP without a broker", lambda path: _draw_raw(udp, tcp, path))
    report.table(
        ("", "UDP", "TCP"),
        (
            ("messages due", udp.due, tcp.due),
            ("not taken by the sender's kernel", udp.refused, tcp.refused),
            ("sent", udp.sent, tcp.sent),
            ("packets with data in the capture", udp.on_the_wire, tcp.on_the_wire),
            ("dropped at the receiver's socket", udp.dropped, tcp.dropped),
            ("there when the receiver reads in the end", udp.kept, tcp.kept),
            ("receive buffer at the start", size(udp.buffer), size(tcp.buffer)),
            ("the machine's counter of such losses (RcvbufErrors)", f"+{number(udp.counted)}", ""),
        ),
    )
    report.say(
        f"UDP: {number(udp.kept)} kept + {number(udp.dropped)} dropped = {number(udp.kept + udp.dropped)}, "
        f"and {number(udp.sent)} were sent. TCP packs many messages into one packet over loopback, so it "
        "has fewer of them.",
        f"tshark itself missed {number(udp.capture_dropped)} packets." if udp.capture_dropped else "",
    )


def _draw_raw(udp: Raw, tcp: Raw, path: Path) -> None:
    figure, panels = drawing(2, "A receiver that never reads: UDP and TCP", 2.5)
    for panel, one in zip(panels, (udp, tcp), strict=True):
        start = one.sent_over_time.times[0]
        panel.plot(one.sent_over_time.since(start), one.sent_over_time.values, color=BLUE,
                   label=f"{one.protocol}: taken by the sender's kernel")  # fmt: skip
        panel.plot(one.dropped_over_time.since(start), one.dropped_over_time.values, "--", color=RED,
                   label="dropped at the receiver's socket")  # fmt: skip
        panel.set_ylabel("messages", fontsize=9)
    kept = [a - b for a, b in zip(udp.sent_over_time.values, udp.dropped_over_time.values, strict=True)]
    panels[0].plot(udp.sent_over_time.since(udp.sent_over_time.times[0]), kept, color=GREEN,
                   label=f"kept in the receiver's buffer ({number(kept[-1])})")  # fmt: skip
    last = tcp.sent_over_time.since(tcp.sent_over_time.times[0])[-1]
    panels[1].plot([0, last], [0, tcp.due], "--", color=GREY, label="due")
    save(figure, panels, path)


def _runs(report: Report, options: Options, runs: list[Run], by_name: dict[tuple[str, str], Run]) -> None:
    report.section("Through the broker")
    report.picture("broker", "where the messages are", lambda path: _draw_runs(runs, path))
    rows: list[list[object]] = []
    for text, pick in (
        ("sent by the publisher", "sent"),
        ("... in the capture", "sent_on_the_wire"),
        ("dropped at the broker's socket", "dropped_before_broker"),
        ("reached the broker, and were left", "ignored"),
        ("handled, and in the log", "handled"),
        ("acknowledged (PubAck read)", "acknowledged"),
        ("PubAcks dropped at the publisher's socket", "acknowledgements_dropped"),
        ("dropped by the broker, and counted", "dropped_by_broker"),
        ("still waiting in the broker", "waiting"),
        ("messages sent to the subscriber", "transmitted"),
        ("... in so many datagrams", "datagrams"),
        ("datagrams dropped at its socket", "datagrams_dropped"),
        ("datagrams read by it", "datagrams_read"),
        ("messages that it has in the end", "received"),
    ):
        udp_only = pick.startswith("datagrams") or pick in _UDP_ONLY
        rows.append(
            [text, *("" if udp_only and one.protocol == "TCP" else getattr(one, pick) for one in runs)]
        )
    rows.append(["broker's memory, grown by", *(size(one.memory_most - one.memory_at_start) for one in runs)])
    report.table(("", *(title(one) for one in runs)), rows)
    never = by_name["UDP", "never"]
    report.say(
        "The datagrams to the subscriber are more than the messages: two answers from before (`Ack "
        "Connect`, `SubAck`) and a `Ping`, what was sent again after 0.2 s, 0.4 s, 0.8 s and so on, and in "
        f"the end the broker's word that it ends. {number(never.datagrams_read)} read + "
        f"{number(never.datagrams_dropped)} dropped = "
        f"{number(never.datagrams_read + never.datagrams_dropped)}; {number(never.datagrams)} were on the "
        "wire.",
        "The subscriber that never reads still says now and then that it is there; one that does not is "
        "forgotten after 12 s (`line.udp_timeout`, and 2 s).",
        f"The flood lasts {min(FLOOD, options.seconds):g} s and is sent with `noack`; all others are "
        "acknowledged.",
    )
    report.picture("memory", "the broker's memory", lambda path: _draw_memory(runs, path))


_UDP_ONLY = ("sent_on_the_wire", "dropped_before_broker", "ignored", "acknowledgements_dropped")


def _draw_runs(runs: list[Run], path: Path) -> None:
    figure, panels = drawing(1, "Where the messages are in the end", 3.6)
    panel = panels[0]
    names = [f"{title(one).replace('`', '')}\n{number(one.sent)} sent" for one in runs]
    left = [0.0] * len(runs)
    for key, text, colour in _PLACES:
        values = []
        for one in runs:
            count = one.transmitted - one.received if key == "unread" else getattr(one, key)
            values.append(100 * max(0, count) / max(1, one.sent))
        panel.barh(range(len(runs)), values, left=left, color=colour, label=text)
        left = [a + b for a, b in zip(left, values, strict=True)]
    panel.set_yticks(range(len(runs)), names, fontsize=8)
    panel.invert_yaxis()
    panel.set_xlim(0, 100)
    panel.set_ylim(len(runs) + 1.8, -0.6)
    save(figure, panels, path, "% of the messages sent")


def _draw_memory(runs: list[Run], path: Path) -> None:
    figure, panels = drawing(1, "The broker's memory above what it was at the start", 2.8)
    colours = (BLUE, RED, GREEN, ORANGE, GREY, "#7d4fb3")
    for one, colour in zip(runs, colours, strict=True):
        grown = [(value - one.memory.values[0]) / 2**20 for value in one.memory.values]
        text = title(one).replace("`", "")
        panels[0].plot(one.memory.since(one.start), grown, color=colour, label=text, linewidth=1.3)
    panels[0].set_ylabel("MiB", fontsize=9)
    save(figure, panels, path)

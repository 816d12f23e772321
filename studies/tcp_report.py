"""The report of the study of TCP flow control: its answers in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from studies import machine
from studies.report import Report, number, size
from studies.tcp_flow_control import RECEIVE_BUFFER, TOPIC, Experiment, Hop, Options, Say, measure
from studies.tcp_plots import draw_broker, draw_link, draw_windows

NAME = "tcp-flow-control"


def study(options: Options, folder: Path, say: Say) -> Report:
    """Run the study and write its report."""
    experiments, left_out = measure(options, say)
    say("the report")
    by_kind = {experiment.kind: experiment for experiment in experiments}
    limits = machine.limits()
    figures = {
        "options": vars(options),
        "experiments": [experiment.figures for experiment in experiments],
        "slow_link_left_out": left_out,
        "machine": limits,
    }
    report = Report(NAME, folder, figures)
    report.title("TCP flow control: what the windows do when the subscriber reads slowly")
    _setting(report, options)
    _answers(report, options, by_kind["plain"], by_kind["ack"], by_kind.get("link"))
    _windows(report, by_kind["plain"], by_kind["ack"])
    _broker(report, by_kind["plain"], by_kind["ack"])
    _link(report, options, by_kind["plain"], by_kind.get("link"), left_out)
    report.machine(limits)
    report.write()
    return report


def _setting(report: Report, options: Options) -> None:
    fast = options.size * options.rate
    report.say(
        f"A publisher sends {number(options.rate)} messages of {number(options.size)} bytes a second "
        f"({size(fast)}/s) on the topic `{TOPIC}`, over the line protocol and loopback, for "
        f"{options.seconds:g} s. Its subscriber first reads as fast as it can, then {number(options.speed)} "
        "bytes a second, then nothing at all, then as fast as it can again. tshark captures both "
        "connections: from the publisher to the broker, and from the broker to the subscriber. The "
        "experiment is made twice: with a plain subscription (and `noack`), and with one that acknowledges "
        f"(`Subscribe ... ack`). The subscriber asks for a receive buffer of {size(RECEIVE_BUFFER)}; left "
        "alone, the kernel gives a socket that is read from fast ever more of it, up to the last figure of "
        "`tcp_rmem`, and it takes longer until it is full."
    )


def _zero(experiment: Experiment, phase: str) -> int:
    return experiment.during(experiment.to_subscriber.events["zero_window"], phase)


def _answers(
    report: Report, options: Options, plain: Experiment, ack: Experiment, link: Experiment | None
) -> None:
    report.section("In short")
    figures, windows = plain.figures, plain.to_subscriber.windows.values
    slow, stopped = _zero(plain, "slow"), _zero(plain, "stopped")
    fast = _zero(plain, "fast")
    points = [
        "**What the window does.** While the subscriber reads fast, its receive window grows as the kernel "
        f"finds that it is read from, up to {size(max(windows))} in all, and {_closed(fast)}. While it "
        "reads slowly, what it does not read fills its receive buffer: the window shrinks to "
        f"{size(_least(plain, 'slow'))}, and {_zero_said(slow)}. While it reads nothing, "
        f"{_zero_said(stopped)}"
        + (
            ": the broker's kernel may send nothing more, and only asks now and then whether there is room "
            f"({_times(len(plain.to_subscriber.events['window_probe']))} in all)."
            if stopped or slow
            else "."
        ),
        "**What wakes it up.** When the subscriber reads again, a window update opens the window "
        f"({_times(len(plain.to_subscriber.events['window_update']))} in all), and what waited flows at "
        "once.",
        _who_was_limited(plain),
        _held_back(options, plain, ack),
    ]
    lost = figures["dropped_by_broker"]
    points.append(
        "**What is lost.** TCP loses nothing of what the broker gave it. A plain subscription had "
        f"{number(figures['delivered'])} of {number(figures['published'])} messages delivered"
        + (
            f"; the other {number(lost)} were dropped by the broker, which counts them, as more than "
            "`max_waiting_bytes` (16 MiB) waited for this one client."
            if lost
            else ": what waited never came to more than the broker keeps for one client."
        )
        + f" With `ack`, {number(ack.figures['delivered'])} of {number(ack.figures['published'])} came"
        + (
            f", and {number(ack.figures['dropped_by_broker'])} were dropped."
            if ack.figures["dropped_by_broker"]
            else ": what a slow client has no room for, it is sent later, from the log."
        )
    )
    if link is not None:
        points.append(
            "**A slow link is not a slow reader.** On a link of the same speed the window never closed"
            if not link.to_subscriber.events["zero_window"]
            else "**A slow link beside a slow reader.** On a link of the same speed the window closed "
            + _times(len(link.to_subscriber.events["zero_window"]))
        )
        points[-1] += (
            f", and stood at {size(_median(link.to_subscriber.windows.values))} (median): there it is the "
            "congestion window that tells the sender how much may be under way."
        )
    report.points(points)
    report.find("zero windows, slow and stopped", f"{slow + stopped}")
    report.find("largest window", size(max(windows)))
    report.find("plain: delivered, dropped", f"{number(figures['delivered'])}, {number(lost)}")
    ack_dropped = number(ack.figures["dropped_by_broker"])
    report.find("ack: delivered, dropped", f"{number(ack.figures['delivered'])}, {ack_dropped}")
    report.find(
        "publisher held back",
        f"{max(figures['publisher_held_back'], ack.figures['publisher_held_back']):.2f} s",
    )


def _who_was_limited(plain: Experiment) -> str:
    slow, stopped = plain.limited("rwnd_limited", "slow"), plain.limited("rwnd_limited", "stopped")
    fast = plain.limited("rwnd_limited", "fast")
    return (
        "**Who says so.** The kernel's own account (`ss -ti`, `rwnd_limited`): the broker's socket was "
        f"held back by the subscriber's window for {fast:.0%} of the time while it read fast, {slow:.0%} "
        f"while it read slowly, and {stopped:.0%} while it did not read."
    )


def _held_back(options: Options, plain: Experiment, ack: Experiment) -> str:
    zero = sum(len(one.to_broker.events["zero_window"]) for one in (plain, ack))
    longest = max(one.figures["publisher_held_back"] for one in (plain, ack))
    begin, end = plain.phase("stopped")
    due = options.rate * (end - begin)
    text = (
        "**Flow control is from hop to hop.** While the subscriber read nothing, "
        f"{number(_published(plain))} and {number(_published(ack))} messages were published, of "
        f"{number(due)} that were due, and no write of the publisher ever took longer than {longest:.3f} s."
    )
    if min(_published(plain), _published(ack)) > 0.8 * due:
        text += (
            " So the broker does not pass the subscriber's slowness on: it goes on reading, or one slow "
            "subscriber would stop all others of the topic."
        )
    if zero:
        text += f" The window that it offers the publisher closed {_times(zero)}, when it was busy itself."
    else:
        text += " The window that it offers the publisher never closed."
    return text


def _published(experiment: Experiment) -> int:
    return experiment.progress(experiment.published, "stopped")


def _zero_said(count: int) -> str:
    return f"it is announced as zero {_times(count)}" if count else "it never came down to zero"


def _closed(count: int) -> str:
    return f"it closed {_times(count)}" if count else "it does not close"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{number(count)} times")


def _least(experiment: Experiment, phase: str) -> float:
    begin, end = experiment.phase(phase)
    windows = experiment.to_subscriber.windows
    found = [
        v for t, v in zip(windows.since(experiment.start), windows.values, strict=True) if begin <= t <= end
    ]
    return min(found, default=0.0)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def _windows(report: Report, plain: Experiment, ack: Experiment) -> None:
    report.section("The windows")
    for experiment, text in ((plain, "plain subscription"), (ack, "subscription with ack")):
        report.picture(
            f"windows-{experiment.kind}",
            f"windows and bytes in flight over time, {text}",
            lambda path, one=experiment, text=text: draw_windows(one, text, path),  # type: ignore[misc]
        )
    rows = []
    for name, pick in _ROWS:
        rows.append(
            [name] + [pick(hop) for one in (plain, ack) for hop in (one.to_broker, one.to_subscriber)]
        )
    head = [
        "",
        "plain: publisher → broker",
        "broker → subscriber",
        "ack: publisher → broker",
        "broker → subscriber",
    ]
    report.table(head, rows)
    report.say(
        "A segment that TCP sends again, as no acknowledgement came in time or the receiver had no memory "
        "for it, is not a message lost or doubled: the subscriber reads each byte once."
        if plain.to_subscriber.events["retransmission"]
        else ""
    )


_ROWS: tuple[tuple[str, Any], ...] = (
    ("packets with data", lambda hop: hop.packets),
    ("window: least", lambda hop: size(min(hop.windows.values, default=0))),
    ("window: most", lambda hop: size(max(hop.windows.values, default=0))),
    ("bytes in flight: most", lambda hop: size(max(hop.in_flight.values, default=0))),
    ("zero window", lambda hop: len(hop.events["zero_window"])),
    ("window full", lambda hop: len(hop.events["window_full"])),
    ("probes of a closed window", lambda hop: len(hop.events["window_probe"])),
    ("window updates", lambda hop: len(hop.events["window_update"])),
    ("segments sent again", lambda hop: len(hop.events["retransmission"])),
)


def _broker(report: Report, plain: Experiment, ack: Experiment) -> None:
    report.section("What the broker does meanwhile")
    report.picture(
        "broker", "messages and the broker's memory over time", lambda path: draw_broker(plain, ack, path)
    )
    names = (
        ("messages published", "published"),
        ("received by the broker", "received_by_broker"),
        ("acknowledged to the publisher", "acknowledged"),
        ("delivered", "delivered"),
        ("delivered twice", "repeated"),
        ("dropped by the broker, and counted", "dropped_by_broker"),
    )
    rows: list[list[object]] = [[text, plain.figures[key], ack.figures[key]] for text, key in names]
    rows.append(
        ["broker's memory at the start", *(size(one.figures["memory_at_start"]) for one in (plain, ack))]
    )
    rows.append(["broker's memory, most", *(size(one.figures["memory"]["most"]) for one in (plain, ack))])
    report.table(("", "plain", "ack"), rows)
    queue = max((one.get("send_queue", 0.0) for _, one in plain.sockets), default=0.0)
    report.say(
        "What the subscriber does not take waits in three places, in this order: its own receive buffer, "
        f"the send buffer of the broker's socket (up to {size(queue)} were in it), and the broker's memory. "
        "The last is bounded. With a plain subscription, what is beyond `max_waiting_bytes` is dropped and "
        "counted; with `ack`, at most `max_buffered_bytes` (1 MiB) and what is in flight wait in memory, "
        "and the rest is read from the log when there is room.",
        f"So the broker's memory grew by {size(_grown(plain))} and {size(_grown(ack))}, and not by the "
        f"{size(plain.figures['to_broker']['bytes'])} that came in. What it grew by beyond those bounds is "
        "the work of writing the log, and with `ack` of reading it again; that is not told apart here.",
        _second_window(ack),
    )


def _second_window(ack: Experiment) -> str:
    closed = len(ack.to_subscriber.events["zero_window"])
    return (
        "With `ack` there is a second window above TCP's: at most `max_inflight` (4,000) messages are "
        "under way that the subscriber has not acknowledged. "
        + (
            "Here they were more than its receive buffer holds, and TCP's window closed all the same, "
            f"{_times(closed)}."
            if closed
            else "Here they fitted into its receive buffer, and so TCP's window never closed."
        )
    )


def _grown(experiment: Experiment) -> float:
    grown: float = experiment.figures["memory"]["most"] - experiment.figures["memory_at_start"]
    return grown


def _link(
    report: Report, options: Options, plain: Experiment, link: Experiment | None, left_out: str
) -> None:
    report.section("A slow link instead of a slow reader")
    if link is None:
        report.say(f"This part was not run: {left_out}.")
        report.find("slow link", f"not run: {left_out}")
        return
    hop, slow = link.to_subscriber, plain.to_subscriber
    report.say(
        "Here the subscriber reads as fast as it can, in a network namespace of its own, and the link to "
        f"it (veth with a token bucket, `tc ... tbf`) takes {number(options.speed)} bytes a second."
    )
    report.picture("link", "slow reader and slow link", lambda path: draw_link(plain, link, path))
    cwnd = _median([one["cwnd"] * one["mss"] for _, one in link.sockets if "cwnd" in one and "mss" in one])
    narrow = _median([one["cwnd"] * one["mss"] for _, one in plain.sockets if "cwnd" in one and "mss" in one])
    report.table(
        ("", "slow reader", "slow link"),
        (
            ("zero windows", _zero(plain, "slow"), len(hop.events["zero_window"])),
            (
                "receive window, median",
                size(_median(_between(plain, slow, "slow"))),
                size(_median(hop.windows.values)),
            ),
            (
                "bytes in flight, median",
                size(_median(slow.in_flight.values)),
                size(_median(hop.in_flight.values)),
            ),
            ("congestion window (`cwnd` x `mss`), median", size(narrow), size(cwnd)),
            ("segments sent again", len(slow.events["retransmission"]), len(hop.events["retransmission"])),
            (
                "of the time held back by the receive window",
                f"{plain.limited('rwnd_limited', 'slow'):.0%}",
                f"{link.limited('rwnd_limited', 'link'):.0%}",
            ),
        ),
    )
    report.say(
        "Both subscribers get about the same number of bytes a second, and the capture tells them apart: a "
        "slow reader shows in the window that it offers, a slow link does not. There the window stays open "
        f"({size(_median(hop.windows.values))}), the congestion window lets the sender have "
        f"{size(cwnd)} under way, "
        + (
            f"and {number(len(hop.events['retransmission']))} segments that found the queue before the link "
            "full were sent again."
            if hop.events["retransmission"]
            else "and no segment was lost."
        ),
        "For the broker there is no difference: its socket takes no more, what waits is bounded (here by 2 "
        f"MiB), and {number(link.figures['dropped_by_broker'])} of {number(link.figures['published'])} "
        f"messages were dropped and counted, {number(link.figures['delivered'])} delivered.",
    )
    report.find("slow link: zero windows", str(len(hop.events["zero_window"])))


def _between(experiment: Experiment, hop: Hop, phase: str) -> list[float]:
    begin, end = experiment.phase(phase)
    times = hop.windows.since(experiment.start)
    return [value for at, value in zip(times, hop.windows.values, strict=True) if begin <= at <= end]

"""The dashboard in a real browser, against a real broker."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import ssl
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path

import httpx
import paho.mqtt.client as paho
import pytest
import trustme
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from playwright.sync_api import Browser, Page, expect

from pyrite.access.users import User, hash_password, write_users
from pyrite.client import BlockingClient
from pyrite.client.log import FlightLog
from pyrite.storage.query import Query
from tests.access.test_tokens import keys, token
from tests.conformance.client import Client, Tcp
from tests.dashboard.conftest import ACCESS, CONFIG, ELSEWHERE, LISTEN, OpenPage
from tests.support.process import BrokerProcess
from tests.support.proxy import Proxy

pytestmark = pytest.mark.xdist_group("dashboard")

WAIT = 10_000.0
SHIFTS = """
new Promise((resolve) => {
  let sum = 0;
  const inList = ({ node }) => node === null || document.getElementById("rows").contains(node);
  const note = (entry) => { if (!entry.sources.every(inList)) sum += entry.value; };
  const observer = new PerformanceObserver((list) => list.getEntries().forEach(note));
  observer.observe({ type: "layout-shift", buffered: true });
  setTimeout(() => resolve(sum), 100);
})
"""
"""How much of the page has jumped, as browsers measure it; but for the list, which is to move."""
IMAGES = Path(__file__).parents[2] / "docs" / "images"


def figure(client: BlockingClient, name: str) -> float:
    """Return a metric as the broker publishes it."""
    with client.subscribe(f"$SYS/broker/{name}") as messages:
        return float(messages.get(5).payload.split()[0])


def tile(page: Page, name: str) -> str:
    return page.locator(f"[data-tile='{name}'] dd").inner_text()


def number(text: str) -> float:
    """Parse a number; return NaN for anything else, which equals no number."""
    return float(re.sub(r"[^0-9.]", "", text) or "nan")


def until(true: Callable[[], bool], page: Page, seconds: float = 10.0) -> None:
    """Wait until a condition holds, while the page runs."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        page.wait_for_timeout(50)


def show(page: Page, topic_filter: str) -> None:
    page.get_by_label("Filter").fill(topic_filter)
    page.get_by_role("button", name="Show").click()


def log_in(page: Page, user: str, password: str) -> None:
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("User name").fill(user)
    dialog.get_by_label("Password or token").fill(password)
    dialog.get_by_role("button", name="Log in").click()
    expect(page.locator("#user")).to_have_text(user)


# What is there


def test_the_files_are_packaged_and_name_no_other_host() -> None:
    static = files("pyrite.http") / "static"
    for name in ("index.html", "app.js", "style.css", "vendor/mqtt/LICENSE.md", "vendor/uplot/LICENSE"):
        assert (static / name).is_file(), name
    for file in static.iterdir():
        if file.name.endswith((".html", ".js", ".css")):
            text = file.read_text()
            assert not re.search(r"https?://(?!www\.w3\.org/)", text), file.name
            assert "innerHTML" not in text, f"{file.name}: text stays text"
            assert "insertAdjacentHTML" not in text, f"{file.name}: text stays text"


# Figures


def test_tiles_show_the_metrics_of_the_broker(
    page: Page, client: BlockingClient, broker: BrokerProcess
) -> None:
    def agrees(name: str, topic: str) -> bool:
        return number(tile(page, name)) == figure(client, topic)

    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.MaximumPacketSize = 200
    small = paho.Client(CallbackAPIVersion.VERSION2, "takes-little", protocol=paho.MQTTv5)
    subscribed = threading.Event()
    small.on_subscribe = lambda *_: subscribed.set()
    small.connect("127.0.0.1", broker.port(), properties=properties)
    small.loop_start()
    try:
        small.subscribe("large")
        assert subscribed.wait(5)
        client.publish("large", b"x" * 1000, qos=1)
        client.publish("kept", b"x", qos=1, retain=True)
        until(lambda: tile(page, "Dropped") == "1", page)
        for name, topic in {
            "Clients": "clients/connected",
            "Subscriptions": "subscriptions/count",
            "Retained": "retained messages/count",
            "In the log": "log/streams/default/offset",  # which begins at 0
            "Slow consumers": "clients/behind",
            "Lost by the log": "log/lost",
        }.items():
            until(partial(agrees, name, topic), page)
        expect(page.locator("[data-tile='Dropped']")).to_have_class("bad")
    finally:
        small.disconnect()
        small.loop_stop()
    assert re.search(r"up \d+", page.locator("#about").inner_text())


def test_dropped_messages_are_not_counted_in_the_log(open_page: OpenPage, tmp_path: Path) -> None:
    stream = "[[stream]]\nname = 'default'\nsegment_bytes = 65536\nretention_bytes = 131072\n"
    (tmp_path / "pyrite.toml").write_text(CONFIG + stream)
    with (
        BrokerProcess("--config=pyrite.toml", "--data=data", *LISTEN, cwd=tmp_path) as broker,
        BlockingClient(broker.urls[0]) as client,
        open_page(broker) as page,
    ):
        for _ in range(10):
            client.publish("large", os.urandom(60_000), qos=1)
        until(lambda: 0 < number(tile(page, "In the log")) < 10, page, 30)
        page.get_by_role("tab", name="Streams").click()
        kept = page.locator("#streams tbody td").nth(4)
        until(lambda: kept.inner_text() == tile(page, "In the log"), page)


def unit_value(text: str) -> float:
    """Parse a size with a unit."""
    value, _, unit = text.removesuffix("/s").partition(" ")
    return number(value) * {"B": 1.0, "KB": 1e3, "MB": 1e6}.get(unit, math.nan)


def test_plots_and_slow_clients_agree_with_the_broker(
    page: Page, client: BlockingClient, broker: BrokerProcess
) -> None:
    slow = Client(Tcp("127.0.0.1", broker.port()))
    load = Load(broker.urls[0], rate=500)

    def legend(plot: str, place: int = 0) -> str:
        return page.locator(f"#plot-{plot} .legend dd").nth(place).inner_text()

    def same(shown: str, told: float) -> bool:
        return abs(number(shown) - told) <= (0.051 if told < 10 else 0.51)

    try:
        slow.connect("slow-one", receive_maximum=1)
        slow.subscribe("slow/#", qos=1)
        client.publish_many([("slow/x", b"x" * 10_000) for _ in range(300)], qos=1)
        expect(page.locator("[data-tile='Slow consumers'] dd")).to_have_text("1")
        expect(page.locator("[data-tile='Slow consumers']")).to_have_class("bad")
        assert figure(client, "clients/behind") == 1
        expect(page.locator("#clients tr", has_text="slow-one").locator(".badge")).to_be_visible()
        expect(page.locator("#clients tr", has_text="dashboard-").locator(".badge")).to_be_hidden()
        for name, told in {
            "Waiting": lambda: max(
                0.0, figure(client, "messages/stored") - figure(client, "retained messages/count")
            ),
            "Longest block": lambda: figure(client, "loop/longest block"),
        }.items():
            until(partial(lambda name, told: same(tile(page, name), told()), name, told), page)
        size = figure(client, "log/streams/default/bytes")
        until(lambda: abs(unit_value(tile(page, "Log size")) / size - 1) < 0.06, page)

        load.start()
        page.get_by_role("tab", name="Streams").click()
        growth = page.locator("#streams tbody tr td").nth(5)
        names = ("bytes/received", "bytes/sent", "log/messages/written")
        before, began = [figure(client, name) for name in names], time.monotonic()
        until(lambda: same(legend("commit"), figure(client, "log/commits/median")), page)
        until(lambda: same(legend("commit", 1), figure(client, "log/commits/longest")), page)
        until(lambda: 250 < number(growth.inner_text()) < 1000, page)
        rates = [
            (figure(client, name) - value) / (time.monotonic() - began)
            for name, value in zip(names, before, strict=True)
        ]
        shown = [
            lambda: unit_value(legend("bytes")),
            lambda: unit_value(legend("bytes", 1)),
            lambda: number(legend("log")),
        ]
        for rate, value in zip(rates, shown, strict=True):
            assert rate > 200
            until(partial(lambda rate, value: 0.4 * rate < value() < 2.5 * rate, rate, value), page)
    finally:
        load.ended.set()
        if load.ident is not None:
            load.join(10)
        slow.close()


WIDEST = """
  let made;
  window.widest = 0;
  Object.defineProperty(window, "uPlot", {
    set: (plain) => { made = class extends plain {
      constructor(...all) {
        super(...all);
        const chart = this, put = this.setData;
        this.setData = (...data) => {
          put(...data);
          setTimeout(() => {
            const { min, max } = chart.scales.x;
            window.widest = Math.max(window.widest, max - min);
          });
        };
      }
    }; },
    get: () => made,
  });
"""
"""Has the page note over how many seconds a plot went, at the most."""


def test_plots_cover_minutes_from_the_first_sample(open_page: OpenPage, broker: BrokerProcess) -> None:
    with open_page(broker, viewport={"width": 800, "height": 600}) as page:
        page.add_init_script(WIDEST)
        page.reload()
        expect(page.locator("#plot-messages .legend dd").first).to_have_text(re.compile(r"\d/s"))
        until(lambda: bool(page.evaluate("window.widest > 0")), page)
        assert page.evaluate("window.widest") <= 300


def test_all_metrics_are_in_a_table(page: Page, client: BlockingClient) -> None:
    page.get_by_role("tab", name="Figures").click()
    row = page.locator("#figures tr", has_text="clients/maximum")
    expect(row.locator("td").nth(1)).to_have_text(str(int(figure(client, "clients/maximum"))), timeout=WAIT)
    with client.subscribe("$SYS/broker/#") as messages:
        names = {messages.get(5).topic for _ in range(20)}
    shown = page.locator("#figures td:first-child").all_inner_texts()
    assert shown == sorted(shown)
    assert {name.removeprefix("$SYS/broker/") for name in names} <= set(shown)


def test_log_panels_are_hidden_without_a_log(open_page: OpenPage) -> None:
    with BrokerProcess("--ephemeral", *LISTEN) as broker, open_page(broker) as page:
        expect(page.locator("#plot-log")).to_be_hidden()
        expect(page.locator("#plot-commit")).to_be_hidden()
        expect(page.locator("#plot-messages")).to_be_visible()
        expect(page.locator("[data-tile='In the log']")).to_be_hidden()
        expect(page.locator("[data-tile='Clients'] dd")).to_have_text("1")
        page.get_by_role("tab", name="Past").click()
        expect(page.locator("#viewer-note")).to_contain_text("keeps no log")


# Topics


def test_the_tree_grows_with_last_values_and_counts(page: Page, client: BlockingClient) -> None:
    page.get_by_label("Follow").fill("tree/#")
    page.get_by_label("Follow").press("Enter")
    for value in range(3):
        client.publish("tree/oven/heat", str(20 + value), qos=1)
    client.publish("tree/door", "open", qos=1)
    tree = page.get_by_role("tree")
    heat = tree.get_by_role("treeitem").filter(has_text="heat")
    expect(heat.locator(".value")).to_have_text("22")
    expect(heat.locator(".count")).to_have_text("3")
    assert tree.locator(".name:visible").all_inner_texts() == ["tree", "door", "oven", "heat"]
    expect(tree.get_by_role("treeitem").first.locator(".count")).to_have_text("4")
    expect(page.locator("#tree-count")).to_have_text("2 topics")
    heat.click()
    expect(page.get_by_label("Filter")).to_have_value("tree/oven/heat")


def test_a_full_tree_reports_what_it_omits(page: Page, client: BlockingClient) -> None:
    page.get_by_label("Follow").fill("many/#")
    page.get_by_label("Follow").press("Enter")
    client.publish_many([(f"many/{topic:05}", "x") for topic in range(20_200)], qos=1)
    expect(page.locator("#tree-note")).to_contain_text("Left out: 201 messages on further topics")
    expect(page.locator("#tree-count")).to_have_text("19,999 topics")
    assert page.locator("#tree > *").count() < 60, "only what is in sight is in the page"


# Messages


def test_messages_arrive_as_json_text_or_bytes_with_their_properties(
    page: Page, client: BlockingClient
) -> None:
    show(page, "view/+")
    properties = {
        "content_type": "application/json",
        "response_topic": "answers/7",
        "correlation_data": b"\x01\xfe",
        "user_property": [("line", "4"), ("line", "5")],
    }
    client.publish("view/json", '{"a":[1,2]}', qos=1, properties=properties)
    client.publish("view/text", "two words", qos=1)
    client.publish("view/bytes", b"\x00\xff\x10", qos=1)
    rows = page.locator("#rows > div")
    expect(rows).to_have_count(3)
    assert rows.locator(".topic").all_inner_texts() == ["view/bytes", "view/text", "view/json"]
    rows.nth(2).click()
    expect(page.locator("#payload")).to_have_text('{\n  "a": [\n    1,\n    2\n  ]\n}')
    pairs = page.locator("#detail-pairs").inner_text()
    for text in ("view/json", "application/json", "answers/7", "01 fe", "line\n4", "line\n5", "11 B"):
        assert text in pairs
    page.get_by_role("tab", name="Hex").click()
    expect(page.locator("#payload")).to_contain_text("7b 22 61 22")
    rows.nth(0).click()
    expect(page.locator("#payload")).to_contain_text("0000  00 ff 10")
    page.get_by_role("tab", name="JSON").click()
    expect(page.locator("#payload-note")).to_contain_text("not JSON")
    rows.nth(1).click()
    expect(page.locator("#payload")).to_have_text("two words")


def test_json_is_indented_and_otherwise_unchanged(page: Page, client: BlockingClient) -> None:
    show(page, "exact")
    sent = '{"id":1767225600123456789,"price":1.10,"big":1e999,"id":-0,"none":[],"o":{ },"t":"\\u00e9 {,\\""}'
    client.publish("exact", sent, qos=1)
    page.locator("#rows > div").click()
    expect(page.locator("#payload")).to_have_text(
        '{\n  "id": 1767225600123456789,\n  "price": 1.10,\n  "big": 1e999,\n  "id": -0,\n'
        '  "none": [],\n  "o": {},\n  "t": "é {,\\""\n}'
    )
    client.publish("exact", "[" * 20_000 + "]" * 20_000, qos=1)
    expect(page.locator("#rows > div")).to_have_count(2)
    page.locator("#rows > div").first.click()
    expect(page.locator("#payload-note")).to_contain_text("characters are left out")


def test_a_truncated_message_is_not_published_again_by_accident(page: Page, client: BlockingClient) -> None:
    show(page, "cut")
    client.publish("cut", "x" * 200_000, qos=1)
    page.locator("#rows > div").click()
    page.get_by_role("button", name="Use in Publish").click()
    expect(page.locator("#publish-note")).to_have_text("This is the first 65.5 KB of 200 KB.")


def test_a_pause_freezes_the_list_and_counts_new_messages(page: Page, client: BlockingClient) -> None:
    show(page, "pause")
    client.publish("pause", "before", qos=1)
    rows = page.locator("#rows > div")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Pause").click()
    for _ in range(3):
        client.publish("pause", "meanwhile", qos=1)
    expect(page.locator("#viewer-left-out")).to_have_text("Paused; 3 came since")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Resume").click()
    client.publish("pause", "after", qos=1)
    expect(rows).to_have_count(2)
    assert rows.locator(".value").all_inner_texts() == ["after", "before"]


def test_an_invalid_filter_is_explained(page: Page) -> None:
    show(page, "a/#/b")
    expect(page.locator("#viewer-note")).to_contain_text("# stands alone, and at the end")


def test_published_messages_arrive_everywhere(page: Page, client: BlockingClient) -> None:
    show(page, "form/#")
    with client.subscribe("form/#", qos=2) as messages:
        page.get_by_role("tab", name="Publish").click()
        page.get_by_label("Topic", exact=True).fill("form/a")
        page.get_by_role("textbox", name="Payload").fill('{"n": 1}')
        page.get_by_label("Content type").fill("application/json")
        page.get_by_label("QoS").select_option("2")
        page.get_by_label("Retain").check()
        page.locator("#publish").get_by_role("button", name="Publish").click()
        expect(page.locator("#publish-note")).to_have_text("Published.")
        message = messages.get(5)
    assert (message.topic, message.payload, message.qos) == ("form/a", b'{"n": 1}', 2)
    assert message.properties["content_type"] == "application/json"
    assert [topic.kept for topic in client.topics("form/a")] == [b'{"n": 1}']
    expect(page.locator("#rows .topic")).to_have_text(["form/a"])
    page.locator("#rows > div").click()
    page.get_by_role("button", name="Use in Publish").click()
    expect(page.get_by_label("Topic", exact=True)).to_have_value("form/a")


def test_topics_and_payloads_are_shown_as_text(page: Page, client: BlockingClient) -> None:
    page.evaluate("() => { window.alert = () => { window.hacked = true; }; }")
    text = "<img src=x onerror=alert(1)><script>alert(1)</script>"
    hostile = f"hostile/{text.replace('/', '|')}"
    show(page, "hostile/#")
    client.publish(hostile, text, qos=1, properties={"user_property": [(text, text)], "content_type": text})
    client.publish(f"$pipelines/{text.replace('/', '|')}", json.dumps({"name": text}))
    expect(page.locator("#rows .topic")).to_have_text(hostile)
    expect(page.locator("#rows .value")).to_have_text(text)
    page.locator("#rows > div").click()
    expect(page.locator("#payload")).to_have_text(text)
    assert page.locator("#detail-pairs").inner_text().count(text) == 3
    expect(page.locator("#tree .name", has_text="<img src=x")).not_to_have_count(0)
    page.get_by_role("tab", name="Pipelines").click()
    expect(page.locator("#pipelines td").first).to_have_text(text)
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("window.hacked") is None


def test_invisible_characters_are_shown_and_do_not_reverse_text(page: Page, client: BlockingClient) -> None:
    show(page, "unseen/#")
    client.publish("unseen/a\nb\t\u202egnp.exe", "\u202egnp.exe", qos=1)
    expect(page.locator("#rows .topic")).to_have_text("unseen/a\u240ab\u2409\u27e8202e\u27e9gnp.exe")
    expect(page.locator("#rows .value")).to_have_text("\u27e8202e\u27e9gnp.exe")
    expect(page.locator("#tree .name", has_text="a\u240ab")).to_have_count(1)
    client.publish(f"unseen/{'long' * 10_000}", "after a long topic", qos=1)
    page.locator("#rows > div").first.click()
    expect(page.locator("#payload")).to_be_in_viewport()


# The past


def test_a_slider_selects_the_start_of_a_replay(page: Page, client: BlockingClient) -> None:
    client.publish_many([(f"past/{number % 2}", f"number {number}") for number in range(250)], qos=1)
    client.publish("past/0", "with a type", qos=1, properties={"content_type": "text/plain"})
    show(page, "past/#")
    page.get_by_role("tab", name="Past").click()
    slider = page.get_by_role("slider", name="Moment in the log")
    rows = page.locator("#rows > div")
    expect(rows).to_have_count(100)
    slider.focus()
    slider.press("Home")
    expect(rows.first.locator(".value")).to_have_text("number 0")
    expect(rows).to_have_count(100)
    rows.nth(7).click()
    expect(page.locator("#payload")).to_have_text("number 7")
    assert re.search(r"Offset\s+\d+", page.locator("#detail-pairs").inner_text())
    page.get_by_role("button", name="Later").click()
    expect(rows.first.locator(".value")).to_have_text("number 100")
    page.get_by_role("button", name="Later").click()
    expect(rows).to_have_count(51)
    rows.last.click()
    expect(page.locator("#detail-pairs")).to_contain_text("text/plain")
    slider.focus()
    slider.press("Home")
    show(page, "past/1")
    expect(rows.locator(".value").nth(1)).to_have_text("number 3")
    slider.press("End")
    expect(page.locator("#rows-empty")).to_have_text("No messages from there on.")
    page.get_by_role("tab", name="Live").click()
    client.publish("past/1", "now", qos=1)
    expect(rows.locator(".value")).to_have_text(["now"])


# Clients, streams, pipelines


def test_clients_are_listed_with_subscriptions_and_can_be_disconnected(
    page: Page, broker: BrokerProcess
) -> None:
    other = paho.Client(CallbackAPIVersion.VERSION2, "listed/client", protocol=paho.MQTTv5)
    subscribed, gone = threading.Event(), threading.Event()
    reasons: list[int] = []
    other.on_subscribe = lambda *_: subscribed.set()

    def disconnected(*arguments: object) -> None:
        reasons.append(getattr(arguments[3], "value", -1))
        gone.set()
        other.disconnect()

    other.on_disconnect = disconnected
    other.connect("127.0.0.1", broker.port())
    other.loop_start()
    try:
        other.subscribe([("some/+", 1), ("other/#", 0)])
        assert subscribed.wait(5)
        row = page.locator("#clients tr", has_text="listed/client")
        expect(row).to_contain_text("127.0.0.1")
        expect(row.locator("td").nth(5)).to_have_text("2")
        page.get_by_role("button", name="listed/client", exact=True).click()
        expect(page.locator("#clients .more:visible li")).to_have_text(["other/# QoS 0", "some/+ QoS 1"])
        row.get_by_role("button", name="Disconnect").click()
        assert not gone.wait(0.2), "it asks once more"
        row.get_by_role("button", name="Disconnect").click()
        assert gone.wait(5)
        assert reasons == [0x98]
        expect(row).to_have_count(0)
        expect(page.locator("#broker-note")).to_have_text("listed/client was disconnected.")
    finally:
        other.loop_stop()


def test_streams_are_listed_with_their_ends(page: Page, client: BlockingClient) -> None:
    client.publish("stream", "x", qos=1)
    page.get_by_role("tab", name="Streams").click()
    row = page.locator("#streams tbody tr")
    expect(row.locator("td").first).to_have_text("default")
    end = row.locator("td").nth(3)
    until(lambda: number(end.inner_text()) == figure(client, "log/streams/default/offset"), page)
    expect(row.locator("td").last).to_have_text("healthy")


def test_named_readers_of_the_log_are_listed_with_their_lag(
    page: Page, client: BlockingClient, broker: BrokerProcess
) -> None:
    page.get_by_role("tab", name="Streams").click()
    rows = page.locator("#streams table").nth(1).locator("tbody tr")
    expect(rows).to_have_count(0)
    client.publish("stream", "x", qos=1)
    with FlightLog(broker.urls[-1]) as log:
        log.progress("plant-query", Query(), 0)
    expect(rows.locator("td").first).to_have_text("plant-query")
    expect(rows.locator("td").nth(2)).to_have_text("default")
    lag = rows.locator("td").nth(4)
    until(lambda: number(lag.inner_text()) == figure(client, "log/streams/default/offset"), page)


def test_pipelines_show_their_state(
    open_page: OpenPage, client: BlockingClient, broker: BrokerProcess
) -> None:
    said = {
        "name": "averages",
        "batch": 41,
        "rows_per_second": 5120.5,
        "lag": 12,
        "time": time.time(),
        "state": "running",
    }
    with open_page(broker) as page:
        tab = page.get_by_role("tab", name="Pipelines")
        expect(tab).to_be_hidden()
        client.publish("$pipelines/averages", json.dumps(said), retain=True)
        tab.click()
        cells = page.locator("#pipelines td")
        expect(cells.nth(5)).to_contain_text(" ago")
        assert cells.all_inner_texts()[:5] == ["averages", "running", "41", "5,121", "12"]
    with open_page(broker) as page:
        page.get_by_role("tab", name="Pipelines").click()
        client.publish("$pipelines/averages", "", retain=True)
        expect(page.get_by_role("tab", name="Pipelines")).to_be_hidden()
        expect(page.locator("#clients")).to_be_visible()


# Access


def test_quotas_are_listed_with_a_bar_for_each_limit(open_page: OpenPage, guarded: BrokerProcess) -> None:
    with (
        BlockingClient(guarded.urls[0], username="bob", password="two", client_id="bobs"),
        open_page(guarded, refusals=True) as page,
    ):
        log_in(page, "ann", "one")
        page.get_by_role("tab", name="Quotas").click()
        row = page.locator("#quotas tbody tr", has_text="bob")
        sessions = row.locator("[data-quota=sessions]")
        expect(sessions).to_have_text("1 of 500,000")
        bar = sessions.get_by_role("meter")
        expect(bar).to_have_attribute("aria-label", "Sessions: 1 of 500,000")
        assert bar.evaluate("bar => [bar.value, bar.max]") == [1, 500_000]
        expect(row.locator("[data-quota=message_rate]").get_by_role("meter")).to_be_hidden()
        expect(page.locator("#quotas tbody tr", has_text="ann")).to_be_visible()


def test_a_logged_in_user_may_do_what_the_rules_allow(open_page: OpenPage, guarded: BrokerProcess) -> None:
    with open_page(guarded, refusals=True) as page:
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("requires a log-in")
        dialog.get_by_label("User name").fill("ann")
        dialog.get_by_label("Password or token").fill("wrong")
        dialog.get_by_role("button", name="Log in").click()
        expect(dialog).to_contain_text("Refused: ")
        dialog.get_by_label("Password or token").fill("one")
        dialog.get_by_role("button", name="Log in").click()
        expect(page.locator("#state")).to_have_text("Connected")
        expect(page.locator("#user")).to_have_text("ann")
        expect(page.locator("#clients td").nth(1)).to_have_text("ann")
        assert page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])") == "[{},{}]"


MOODY = """
from pyrite.broker.access import Accept, Access, Refuse

class Moody(Access):
    asked = 0

    def authenticate(self, credentials):
        if credentials.username == "hasty":
            return Refuse(0x9F, "too many failed log-ins; try again in 4 s")
        self.asked += credentials.username == "early" and credentials.client_id != ""
        if self.asked == 1:
            return Refuse(0x89, "too many log-ins wait")
        return Accept(username=credentials.username)
"""


def test_a_refusal_shows_the_brokers_reason_and_a_retry_happens(open_page: OpenPage, tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text(MOODY)
    (tmp_path / "pyrite.toml").write_text(CONFIG + "authenticator = 'moody:Moody'\n")
    arguments = ("--config=pyrite.toml", "--ephemeral", *LISTEN)
    with BrokerProcess(*arguments, cwd=tmp_path) as broker, open_page(broker) as page:
        page.evaluate("document.getElementById('log-in').hidden = false")
        page.get_by_role("button", name="Log in").click()
        dialog, note = page.get_by_role("dialog"), page.locator("#log-in-note")
        dialog.get_by_label("User name").fill("hasty")
        dialog.get_by_role("button", name="Log in").click()
        expect(note).to_have_text("Refused: too many failed log-ins; try again in 4 s")
        dialog.get_by_label("User name").fill("early")
        dialog.get_by_role("button", name="Log in").click()
        expect(page.locator("#state")).to_have_text("Not connected, trying again: too many log-ins wait")
        expect(page.locator("#state")).to_have_text("Connected")


def test_a_refused_action_is_reported(open_page: OpenPage, guarded: BrokerProcess) -> None:
    with open_page(guarded, refusals=True) as page:
        log_in(page, "bob", "two")
        expect(page.locator("#state")).to_have_text("Connected")
        for note in ("#viewer-note", "#tree-note"):
            expect(page.locator(note)).to_contain_text("Refused: ")
        expect(page.locator("#figures-note")).to_contain_text("require the right to subscribe to $SYS/#")
        expect(page.locator("#rates")).to_be_hidden()
        page.get_by_role("tab", name="Pipelines").click()
        expect(page.locator("#pipelines")).to_contain_text("require the right to subscribe to $pipelines/#")
        page.get_by_role("tab", name="Clients").click()
        expect(page.locator("#broker-note")).to_contain_text("Not allowed")
        page.get_by_role("tab", name="Publish").click()
        for topic, words in {"ann/a": "Refused: ", "bob/a": "Published"}.items():
            page.get_by_label("Topic", exact=True).fill(topic)
            page.locator("#publish").get_by_role("button", name="Publish").click()
            expect(page.locator("#publish-note")).to_contain_text(words)
        show(page, "public/#")
        expect(page.locator("#viewer-note")).to_be_empty()
        with BlockingClient(guarded.urls[0], username="ann", password="one") as ann:
            ann.publish("public/news", "read me", qos=1)
        expect(page.locator("#rows .value")).to_have_text("read me")

        page.get_by_role("button", name="Log in as another").click()
        log_in(page, "ann", "one")
        expect(page.locator("#rows > div")).to_have_count(0)
        for note in ("#figures-note", "#viewer-note", "#tree-note", "#broker-note"):
            expect(page.locator(note)).to_be_empty()
        expect(page.locator("#rates")).to_be_visible()
        expect(page.get_by_role("tab", name="Pipelines")).to_be_hidden()


def test_changed_permissions_apply_to_open_pages(open_page: OpenPage, tmp_path: Path) -> None:
    config = tmp_path / "pyrite.toml"
    config.write_text(CONFIG + ACCESS)
    write_users(tmp_path / "users", [User("ann", hash_password("one")), User("bob", hash_password("two"))])
    arguments = ("--config=pyrite.toml", "--data=data", *LISTEN)
    with (
        BrokerProcess(*arguments, cwd=tmp_path) as broker,
        BlockingClient(broker.urls[0], username="bob", password="two") as bob,
        open_page(broker, refusals=True) as page,
    ):
        log_in(page, "ann", "one")
        bob.publish("bob/1", "for ann", qos=1)
        page.locator("#rows > div").click()
        expect(page.locator("#payload")).to_have_text("for ann")
        page.get_by_role("tab", name="Figures").click()
        expect(page.locator("#figures tbody tr").first).to_be_visible()

        config.write_text(CONFIG + ACCESS.replace('"ann"', '"another"'))
        broker.process.send_signal(signal.SIGHUP)
        for note in ("#viewer-note", "#tree-note"):
            expect(page.locator(note)).to_contain_text("efused")
        expect(page.locator("#figures-note")).to_contain_text("require the right to subscribe to $SYS/#")
        for what in ("#rows > div", "#figures tbody tr"):
            expect(page.locator(what)).to_have_count(0)
        for what in ("#detail-body", "#rates"):
            expect(page.locator(what)).to_be_hidden()
        expect(page.locator("#about")).to_be_empty()
        page.get_by_role("tab", name="Clients").click()
        expect(page.locator("#broker-note")).to_contain_text("Not allowed")

        config.write_text(CONFIG + ACCESS)
        broker.process.send_signal(signal.SIGHUP)
        for note in ("#viewer-note", "#tree-note", "#figures-note", "#broker-note"):
            expect(page.locator(note)).to_be_empty()
        bob.publish("bob/2", "for ann again", qos=1)
        expect(page.locator("#rows .value")).to_have_text("for ann again")
        expect(page.locator("#clients td").first).to_be_visible()


def test_replay_is_offered_to_users_who_may_pull(open_page: OpenPage, guarded: BrokerProcess) -> None:
    with BlockingClient(guarded.urls[0], username="ann", password="one") as ann:
        ann.publish("secret", "not for bob", qos=1)
        ann.publish_many([("public/old", f"number {number}") for number in range(3)], qos=1)
    with open_page(guarded, refusals=True) as page:
        log_in(page, "bob", "two")
        rows, slider = page.locator("#rows > div"), page.locator("#past-slider")
        page.get_by_role("tab", name="Past").click()
        expect(page.locator("#viewer-note")).to_contain_text("Not allowed: not authorized: pull '#'")
        expect(slider).to_be_disabled()
        show(page, "public/old")
        expect(rows.locator(".value")).to_have_text(["number 0", "number 1", "number 2"])
        expect(page.locator("#viewer-note")).to_be_empty()
        slider.focus()
        slider.press("End")
        expect(rows).to_have_count(0)
        slider.press("Home")
        expect(rows.first.locator(".value")).to_have_text("number 0")
        show(page, "#")
        expect(page.locator("#viewer-note")).to_contain_text("Not allowed: ")
        expect(rows).to_have_count(0)

        page.get_by_role("button", name="Log in as another").click()
        log_in(page, "ann", "one")
        expect(rows.locator(".value", has_text="not for bob")).to_have_count(1)


def test_an_anonymous_user_can_log_in(open_page: OpenPage, tmp_path: Path) -> None:
    (tmp_path / "pyrite.toml").write_text(CONFIG + ACCESS.replace("[access]", "[access]\nanonymous = true"))
    write_users(tmp_path / "users", [User("ann", hash_password("one"))])
    arguments = ("--config=pyrite.toml", "--ephemeral", *LISTEN)
    with BrokerProcess(*arguments, cwd=tmp_path) as broker, open_page(broker, refusals=True) as page:
        expect(page.locator("#tree-note")).to_contain_text("Refused: ")
        expect(page.get_by_role("dialog")).to_be_hidden()
        page.get_by_role("button", name="Log in").click()
        log_in(page, "ann", "one")
        expect(page.locator("#tree-note")).to_be_empty()


def test_the_dashboard_works_over_tls_with_a_token(open_page: OpenPage, tmp_path: Path) -> None:
    keys(tmp_path / "keys", "hs")
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        str(tmp_path / "server.pem")
    )
    tls = "[tls]\ncertificate = 'server.pem'\n"
    access = ACCESS.replace('users = "users"', 'jwt_keys = "keys"', 1)
    (tmp_path / "pyrite.toml").write_text(CONFIG + tls + access)
    listen = [f"--listen={scheme}://127.0.0.1:0" for scheme in ("mqtt", "ws", "https", "wss")]
    with (
        BrokerProcess("--config=pyrite.toml", "--data=data", *listen, cwd=tmp_path) as broker,
        open_page(broker, refusals=True, ignore_https_errors=True) as page,
    ):
        sockets: list[str] = []
        page.on("websocket", lambda socket: sockets.append(socket.url))
        page.get_by_label("User name").fill("ann")
        page.get_by_label("Password or token").fill(token("hs"))
        page.get_by_role("dialog").get_by_role("button", name="Log in").click()
        expect(page.locator("#state")).to_have_text("Connected")
        expect(page.locator("#clients td").nth(1)).to_have_text("ann")
        assert {url.partition(":")[0] for url in sockets} == {"wss"}


def test_the_dashboard_works_behind_a_proxy_with_a_path(browser: Browser, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(ELSEWHERE).configure_cert(context)
    write_users(tmp_path / "users", [User("ann", hash_password("one"))])
    complaints: list[str] = []
    with Proxy(context, "/pyrite") as proxy:
        url = f"https://{ELSEWHERE}:{proxy.port}/pyrite/"
        (tmp_path / "pyrite.toml").write_text(f"{CONFIG}{ACCESS}[http]\npublic_url = '{url}'\n")
        with (
            BrokerProcess("--config=pyrite.toml", "--data=data", *LISTEN, cwd=tmp_path) as broker,
            BlockingClient(broker.urls[0], client_id="other", username="ann", password="one") as client,
            browser.new_context(ignore_https_errors=True) as window,
        ):
            proxy.websocket, proxy.http = broker.port(1), broker.port(2)
            page = window.new_page()
            page.on("console", lambda message: complaints.append(message.text))
            page.goto(url)
            log_in(page, "ann", "one")
            client.publish("a", "through the proxy", qos=1)
            expect(page.locator("#rows .value")).to_have_text("through the proxy")
            end = page.get_by_role("button", name="Disconnect other")
            end.click()
            end.click()
            expect(page.locator("#broker-note")).to_have_text("other was disconnected.")
            metrics = httpx.get(f"{broker.urls[2]}/metrics", headers={"Host": f"{ELSEWHERE}:{proxy.port}"})
            assert metrics.status_code == 401
            for name in (f"other.example:{proxy.port}", ELSEWHERE):
                assert httpx.get(broker.urls[2], headers={"Host": name}).status_code == 421
    assert complaints == []


def test_https_without_an_encrypted_websocket_is_explained(browser: Browser, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(ELSEWHERE).configure_cert(context)
    with (
        Proxy(context, "") as proxy,
        BrokerProcess("--ephemeral", "--allow-anonymous", *LISTEN[:2], "--listen=http://0.0.0.0:0") as broker,
        browser.new_context(ignore_https_errors=True) as window,
    ):
        proxy.http = broker.port(2)
        page = window.new_page()
        page.goto(f"https://{ELSEWHERE}:{proxy.port}/")
        expect(page.locator("#state")).to_contain_text("needs a wss:// listener, or a proxy")


# Looks


@pytest.mark.parametrize("width", [390, 320])
def test_the_page_fits_on_a_phone(
    open_page: OpenPage, client: BlockingClient, broker: BrokerProcess, width: int
) -> None:
    with open_page(broker, viewport={"width": width, "height": 844}, has_touch=True) as page:
        client.publish("phone/" + "long/" * 30 + "topic", "word" * 500, qos=1)
        page.locator("#rows > div").first.click()
        for tab in ("Past", "Live", "Publish", "Message", "Streams", "Figures", "Clients"):
            page.get_by_role("tab", name=tab, exact=True).click()
            assert page.evaluate("document.documentElement.scrollWidth") == width, tab
        edges = "[...document.querySelectorAll('main > *')].map((e) => e.getBoundingClientRect().right)"
        assert max(page.evaluate(edges)) <= width


def test_notes_and_slider_are_usable_on_a_small_phone(open_page: OpenPage, guarded: BrokerProcess) -> None:
    options = {"viewport": {"width": 320, "height": 640}, "has_touch": True}
    with open_page(guarded, refusals=True, **options) as page:
        log_in(page, "bob", "two")
        note = page.locator("#broker-note")
        expect(note).to_contain_text("Not allowed")
        box = note.bounding_box()
        assert box is not None
        assert box["width"] > 200
        assert box["x"] + box["width"] <= 320
        assert note.evaluate("(e) => e.scrollWidth <= e.parentElement.clientWidth")
        page.get_by_role("tab", name="Past").click()
        slider = page.locator("#past-slider").bounding_box()
        assert slider is not None
        assert slider["height"] >= 30
        label = page.locator("label[for=past-time]").bounding_box()
        field = page.locator("#past-time").bounding_box()
        assert label is not None
        assert field is not None
        assert field["y"] < label["y"] + label["height"] / 2 < field["y"] + field["height"], "side by side"


def test_the_theme_follows_the_system_until_one_is_chosen(open_page: OpenPage, broker: BrokerProcess) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with open_page(broker, color_scheme="dark") as page:
        root = page.locator("html")
        expect(root).to_have_attribute("data-theme", "dark")
        dark = page.evaluate(ground)
        page.emulate_media(color_scheme="light")
        expect(root).to_have_attribute("data-theme", "light")
        light = page.evaluate(ground)
        assert dark != light
        page.get_by_role("button", name="Dark").click()
        assert page.evaluate(ground) == dark
        page.reload()
        assert page.evaluate(ground) == dark
        expect(page.get_by_role("button", name="Dark")).to_have_attribute("aria-pressed", "true")


def test_everything_is_reachable_by_keyboard(page: Page, client: BlockingClient) -> None:
    page.get_by_label("Follow").fill("keys/#")
    page.get_by_label("Follow").press("Enter")
    show(page, "keys/#")
    client.publish("keys/a/b/c/d", "deep", qos=1)
    client.publish("keys/z", "flat", qos=1)
    expect(page.locator("#rows > div")).to_have_count(2)

    reached = set()
    page.locator(".skip").focus()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
        assert page.evaluate(
            "document.activeElement === document.body || document.activeElement.matches(':focus-visible')"
        )
    wanted = {
        "theme",
        "tree-filter",
        "tree",
        "viewer-filter",
        "tab-live",
        "pause",
        "rows",
        "tab-detail",
        "tab-clients",
    }
    assert wanted <= reached

    tree = page.get_by_role("tree")
    tree.focus()
    active = "document.getElementById(document.getElementById('tree').getAttribute('aria-activedescendant'))"
    name = f"{active}.querySelector('.name').textContent"
    assert page.evaluate(name) == "keys"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(name) == "c"
    expect(page.locator("#tree .name", has_text=re.compile("^d$"))).to_have_count(0)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(name) == "d"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(f"{active}.getAttribute('aria-expanded')") == "false"
    page.keyboard.press("End")
    assert page.evaluate(name) == "z"
    page.keyboard.press("Enter")
    expect(page.get_by_label("Filter")).to_have_value("keys/z")

    show(page, "keys/#")
    client.publish("keys/z", "again", qos=1)
    expect(page.locator("#rows > div")).to_have_count(1)
    page.locator("#rows").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#payload")).to_have_text("again")
    page.get_by_role("tab", name="Clients").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Streams")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#streams")).to_be_visible()


def test_every_field_and_button_has_a_name(page: Page) -> None:
    unnamed = """
    [...document.querySelectorAll("button, input, select, textarea")].filter((e) =>
      !e.textContent.trim() && !e.getAttribute("aria-label") && !e.labels?.length).map((e) => e.id)
    """
    assert page.evaluate(unnamed) == []


# Under load


class Load(threading.Thread):
    """Publishes messages at a rate until it is stopped."""

    def __init__(self, url: str, rate: int = 5000) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.rate = rate
        self.ended = threading.Event()
        self.sent = 0

    def run(self) -> None:
        topics = [f"load/{hall}/{machine}/heat" for hall in range(10) for machine in range(50)]
        with BlockingClient(self._url, client_id="load") as client:
            began = time.monotonic()
            while not self.ended.wait(0.02):
                due = int((time.monotonic() - began) * self.rate)
                client.publish_many(
                    [(topics[number % 500], f'{{"celsius":{number}}}') for number in range(self.sent, due)]
                )
                self.sent = due


def test_the_page_stays_smooth_at_five_thousand_messages_a_second(page: Page, broker: BrokerProcess) -> None:
    page.evaluate(
        "window.frames_seen = 0;"
        "(function count() { window.frames_seen += 1; requestAnimationFrame(count); })()"
    )
    show(page, "load/#")
    load = Load(broker.urls[0])
    load.start()
    longest, shown_rates = 0.0, []
    try:
        began, before = time.monotonic(), page.evaluate("window.frames_seen")
        while time.monotonic() < began + 4:
            asked = time.monotonic()
            page.evaluate("1 + 1")
            longest = max(longest, time.monotonic() - asked)
            shown_rates.append(page.locator("#plot-messages .legend dd").first.inner_text())
            page.wait_for_timeout(100)
        frames = page.evaluate("window.frames_seen") - before
        elapsed = time.monotonic() - began
    finally:
        load.ended.set()
        load.join(10)
    assert longest < 1.0
    assert frames / elapsed > 10
    rate = statistics.median(map(number, shown_rates[len(shown_rates) // 2 :]))
    assert 0.5 * load.rate < rate < 2 * load.rate  # more than the load's own, when that has caught up
    assert page.evaluate(SHIFTS) < 0.02
    received = page.locator("#viewer-count")
    until(lambda: number(received.inner_text()) == load.sent, page)
    left_out = page.locator("#viewer-left-out").inner_text()
    shown = page.locator("#rows > div").count()
    assert shown <= 200
    assert load.sent - 1500 < number(left_out.split(" left out")[0]) < load.sent - 100
    expect(page.locator("#tree-count")).to_have_text(re.compile(r"\d+ topics"))
    load_row = page.get_by_role("treeitem").filter(has=page.locator(".name", has_text=re.compile("^load$")))
    expect(load_row.locator(".count")).to_have_text(f"{load.sent:,}")


def test_a_lost_connection_is_restored(page: Page) -> None:
    row = page.locator("#clients tr", has_text="dashboard-")
    row.get_by_role("button", name="Disconnect").click()
    row.get_by_role("button", name="Disconnect").click()
    expect(page.locator("#state")).to_contain_text("Not connected, trying again")
    expect(page.locator("#numbers")).to_have_css("opacity", "0.45")
    expect(page.locator("#state")).to_have_text("Connected")
    expect(page.locator("#numbers")).to_have_css("opacity", "1")


# Pictures


@pytest.fixture
def factory(broker: BrokerProcess) -> Iterator[None]:
    """Machines that publish their temperature, and a pipeline that publishes its state."""
    ended = threading.Event()

    def work() -> None:
        with BlockingClient(broker.urls[0], client_id="factory") as client:
            step = 0
            while not ended.wait(0.02):
                step += 1
                wave = math.sin(step / 30)
                messages = [
                    (
                        f"factory/{site}/{machine}/{kind}",
                        json.dumps({kind: round(50 + 20 * wave + place, 1), "step": step}),
                    )
                    for place, site in enumerate(("oslo", "turin"))
                    for machine in ("oven", "press", "robot")
                    for kind in ("celsius", "bar")
                ]
                client.publish_many(messages[: 7 + int(5 * wave)], qos=1)
                said = {
                    "name": "averages",
                    "batch": step,
                    "rows_per_second": 480,
                    "lag": 3,
                    "time": time.time(),
                }
                client.publish("$pipelines/averages", json.dumps(said | {"state": "running"}), retain=True)
            client.publish("$pipelines/averages", "", retain=True)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join(10)


def test_the_pictures_of_the_documentation_can_be_made(
    open_page: OpenPage, broker: BrokerProcess, factory: None, tmp_path: Path
) -> None:
    """With PYRITE_WRITE_IMAGES=1, the pictures of the documentation are made again."""
    written = bool(os.environ.get("PYRITE_WRITE_IMAGES"))
    folder = IMAGES if written else tmp_path
    folder.mkdir(exist_ok=True)
    with open_page(broker, viewport={"width": 1440, "height": 1080}) as page:
        page.get_by_label("Follow").fill("factory/#")
        page.get_by_label("Follow").press("Enter")
        show(page, "factory/#")
        expect(page.locator("#plot-messages .legend dd").first).to_have_text(re.compile(r"\d/s"))
        page.wait_for_timeout(25_000 if written else 0)
        page.get_by_role("button", name="Pause").click()
        page.locator("#rows > div").nth(2).click()
        page.locator("#rows > div").nth(2).evaluate("(row) => row.ownerDocument.activeElement.blur()")
        for name in ("light", "dark", "phone"):
            page.emulate_media(color_scheme="dark" if name == "dark" else "light")
            if name == "phone":
                page.set_viewport_size({"width": 390, "height": 844})
            page.wait_for_timeout(300)
            file = folder / f"dashboard-{name}.png"
            page.screenshot(path=file, full_page=name != "phone")
            assert file.stat().st_size > 10_000

"""A browser, brokers, and pages of the dashboard that must not log errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request, sync_playwright

from pyrite.access.users import User, hash_password, write_users
from pyrite.client import BlockingClient
from tests.support.process import BrokerProcess

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LISTEN = ("--listen=mqtt://127.0.0.1:0", "--listen=ws://127.0.0.1:0/mqtt", "--listen=http://127.0.0.1:0")
FLIGHT = "--listen=flight://127.0.0.1:0"
ELSEWHERE = "broker.example"
"""A name that the browser has for this machine, and that does not say so."""
TIMEOUT = 10_000.0
"""Milliseconds that the page has for anything."""

CONFIG = """
[mqtt]
sys_interval = 0.5
"""
ACCESS = """
[access]
users = "users"

[[access.rule]]
users = ["ann"]
publish = ["#"]
subscribe = ["#", "$SYS/#", "$pipelines/#"]
pull = ["#"]
admin = ["#"]

[[access.rule]]
users = ["bob"]
publish = ["bob/#"]
subscribe = ["public/#"]
pull = ["public/#"]
"""

OpenPage = Callable[..., AbstractContextManager[Page]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1"],
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker without access rules."""
    folder = tmp_path_factory.mktemp("open")
    (folder / "pyrite.toml").write_text(CONFIG)
    with BrokerProcess("--config=pyrite.toml", *LISTEN, FLIGHT, "--data=data", cwd=folder) as broker:
        yield broker


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with users: ann has all permissions, bob few."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "pyrite.toml").write_text(CONFIG + ACCESS)
    users = [User("ann", hash_password("one")), User("bob", hash_password("two"))]
    write_users(folder / "users", users)
    with BrokerProcess("--config=pyrite.toml", *LISTEN, "--data=data", cwd=folder) as broker:
        yield broker
    assert not any("two" in line.split() for line in broker.log), "no password is logged"


@pytest.fixture(scope="module")
def window(browser: Browser) -> Iterator[Page]:
    """A large window shared by most tests, since opening one takes longer than a test."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    yield context.new_page()
    context.close()


@pytest.fixture
def open_page(browser: Browser, window: Page) -> OpenPage:
    """Open the dashboard of a broker. It must not log an error or contact another host.

    `refusals` allows refused requests, which browsers count as errors of the page. With options of a window,
    the page is opened in a new one.
    """

    @contextmanager
    def opened(broker: BrokerProcess, *, refusals: bool = False, **options: Any) -> Iterator[Page]:
        complaints: list[str] = []
        hosts: set[str | None] = set()

        def heard(message: ConsoleMessage) -> None:
            refused = "status of 401" in message.text or "status of 403" in message.text
            if message.type in ("error", "warning") and not (refusals and refused):
                complaints.append(message.text)

        def failed(error: Error) -> None:
            complaints.append(str(error))

        def asked(request: Request) -> None:
            hosts.add(urlsplit(request.url).hostname)

        page = browser.new_context(**options).new_page() if options else window
        page.set_default_timeout(TIMEOUT)
        page.on("console", heard)
        page.on("pageerror", failed)
        page.on("request", asked)
        try:
            page.goto(broker.urls[2] + "/")
            if not refusals:
                page.get_by_text("Connected", exact=True).wait_for()
            yield page
        finally:
            if options:
                page.context.close()
            else:
                page.remove_listener("console", heard)
                page.remove_listener("pageerror", failed)
                page.remove_listener("request", asked)
                page.goto("about:blank")
        assert complaints == []
        assert hosts == {"127.0.0.1"}

    return opened


@pytest.fixture
def page(open_page: OpenPage, broker: BrokerProcess) -> Iterator[Page]:
    with open_page(broker) as page:
        yield page


@pytest.fixture
def client(broker: BrokerProcess, tmp_path: Path) -> Iterator[BlockingClient]:
    with BlockingClient(broker.urls[0], client_id=f"tester-{tmp_path.name[-20:]}") as client:
        yield client

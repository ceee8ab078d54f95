"""The desk in a real browser: keyboard, two widths, dark mode, no console errors, no request to another host."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.desk.desk_world import ATTACK, World, make_world
from tests.end_to_end.headless_browser import AXE, CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt install chromium)"),
]
_PATIENCE = 60_000
"""Milliseconds that a step may take on a machine that is busy with other tests."""
_CHOSEN = "/chooser?protect=record&from=coordinator&sites=3&fair=sites"
PAGES = (
    "/",
    "/chooser",
    _CHOSEN,
    "/planner",
    "/requests",
    "/requests/second.json",
    "/ledger",
    "/runs",
    "/compare?a=run-1&b=run-2",
)


@dataclass
class Served:
    """A desk that is being served, and what went wrong in its pages."""

    world: World
    origin: str
    cookie: dict[str, Any]
    faults: list[str] = field(default_factory=list)

    def page(self, browser: Browser, **options: Any) -> Page:
        """A page of a fresh browser window that is logged in; whatever it complains about is kept."""
        context = browser.new_context(**options)
        context.set_default_timeout(_PATIENCE)
        context.add_cookies([self.cookie])
        page = context.new_page()
        page.on("console", lambda said: said.type in ("error", "warning") and self.faults.append(said.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("dialog", lambda dialog: (self.faults.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on(
            "request",
            lambda sent: None if sent.url.startswith((self.origin, "data:")) else self.faults.append(sent.url),
        )
        return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
        started = driver.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=_PATIENCE)
        yield started
        started.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    import socket

    import uvicorn

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    port = listening.getsockname()[1]
    world = make_world(tmp_path_factory.mktemp("desk"), port=port)
    config = uvicorn.Config(world.desk().application(), log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    origin = f"http://127.0.0.1:{port}"
    cookie = {"name": world.access.cookie, "value": world.access.session, "url": origin}
    try:
        yield Served(world, origin, cookie)
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()


@pytest.fixture(autouse=True)
def _no_complaints(served: Served) -> Iterator[None]:
    served.faults.clear()
    yield
    assert not served.faults


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_the_window_and_complains_about_nothing(
    served: Served, browser: Browser, width: int, scheme: str
) -> None:
    page = served.page(browser, viewport={"width": width, "height": 900}, color_scheme=scheme)
    for path in PAGES:
        page.goto(served.origin + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.locator("h1").count() == 1
        light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert light == (scheme == "light"), path
    page.context.close()


def test_the_one_time_address_opens_the_desk_once(served: Served, browser: Browser) -> None:
    first, second = browser.new_context(), browser.new_context()
    page = first.new_page()
    page.goto(f"{served.origin}/enter?token={served.world.access.token}", timeout=_PATIENCE)
    assert page.url == f"{served.origin}/"
    assert "token" not in page.content()
    stranger = second.new_page()
    for address in (f"/enter?token={served.world.access.token}", "/enter?token=wrong", "/ledger"):
        assert stranger.goto(served.origin + address, timeout=_PATIENCE).status == 403
    first.close()
    second.close()


def test_a_strangers_name_for_this_machine_is_refused(served: Served, browser: Browser) -> None:
    """DNS rebinding: the browser believes that the stranger's host is at 127.0.0.1, and sends its cookies there."""
    context = browser.new_context()
    port = served.world.access.port
    context.add_cookies([{**served.cookie, "url": f"http://rebound.localhost:{port}"}])
    answer = context.new_page().goto(f"http://rebound.localhost:{port}/ledger", timeout=_PATIENCE)
    assert answer is not None
    assert answer.status == 403
    assert "answers only to 127.0.0.1" in answer.text()
    context.close()


def test_the_planner_is_used_by_keyboard_and_answers_as_it_moves(served: Served, browser: Browser) -> None:
    page = served.page(browser)
    page.goto(f"{served.origin}/planner?rounds=50")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    before = page.locator("#answer").inner_text()
    page.locator("input[type=range][data-for=epsilon]").focus()
    for _ in range(5):
        page.keyboard.press("PageUp")
    page.wait_for_function("before => document.getElementById('answer').innerText !== before", arg=before)
    moved = page.locator("#epsilon").input_value()
    assert float(moved) > 1
    page.wait_for_function("value => location.search.includes('epsilon=' + value)", arg=moved)
    answered = page.locator("#answer").inner_text()
    page.goto(page.url)  # the link reproduces the setting
    assert page.locator("#epsilon").input_value() == moved
    assert page.locator("#answer").inner_text() == answered
    assert page.locator("#curves polyline").count() >= 2
    page.fill("#rounds", ATTACK)
    page.wait_for_selector("#answer [role=alert]")
    assert page.locator("#answer img, #answer script").count() == 0
    page.fill("#rounds", "60")
    page.wait_for_selector("#answer .tiles")
    page.context.close()


def test_the_chooser_is_answered_by_keyboard(served: Served, browser: Browser) -> None:
    page = served.page(browser)
    page.goto(f"{served.origin}/chooser")
    page.locator("#protect-attribute").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#protect-record").is_checked()
    page.get_by_label("How many sites").fill("3")
    page.keyboard.press("Enter")
    page.wait_for_selector("#choice h2 >> text=fair-plugin, protecting one record")
    page.locator("#fair-sites").check()
    page.get_by_role("button", name="Choose").press("Enter")
    page.wait_for_selector("#choice h2 >> text=fedfdp, protecting one record")
    page.get_by_role("link", name="How much noise it needs").press("Enter")
    page.wait_for_url("**/planner?algorithm=fedfdp&sites=3")
    page.context.close()


def test_an_officer_signs_and_declines_by_keyboard(served: Served, browser: Browser) -> None:
    page = served.page(browser)
    page.goto(f"{served.origin}/requests")
    page.get_by_role("link", name="second.json").press("Enter")
    page.wait_for_url("**/requests/second.json")
    page.get_by_role("button", name="Sign this budget").press("Enter")
    page.wait_for_selector(".state.signed >> text=signed")
    with page.expect_download() as got:
        page.get_by_role("link", name="The answer").press("Enter")
    assert got.value.suggested_filename == "second-signed.json"
    page.goto(f"{served.origin}/requests/first.json")
    page.get_by_label("Reason to decline").fill(ATTACK)
    page.get_by_role("button", name="Decline").press("Enter")
    page.wait_for_selector("text=Declined")
    assert ATTACK in page.locator("main").inner_text()
    page.context.close()


def test_reports_open_without_script(served: Served, browser: Browser) -> None:
    page = served.page(browser)
    page.goto(f"{served.origin}/runs")
    page.get_by_role("link", name="run-1").press("Enter")
    page.wait_for_url("**/report")
    assert "consistent" in page.content()
    assert page.locator("script").count() == 0
    page.context.close()


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed (npm install --no-save axe-core@4)")
def test_axe_finds_nothing(served: Served, browser: Browser) -> None:
    page = served.page(browser, bypass_csp=True)
    for path in PAGES:
        page.goto(served.origin + path)
        page.add_script_tag(path=AXE)
        found = page.evaluate("axe.run().then(result => result.violations.map(one => one.id + ': ' + one.help))")
        assert not found, (path, found)
    page.context.close()

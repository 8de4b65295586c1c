"""The pages of a router in a real browser: two tabs, one diagram, and a router that is killed."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.e2e.router_process import RouterProcess, running

pytestmark = pytest.mark.timeout(240)

WAIT_MS = 60_000.0
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if (found := shutil.which(name)) is not None:
            return found
    pytest.skip("no Chromium here; install the package chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_browser()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RouterProcess]:
    with running(tmp_path / "data") as started:
        yield started


class Tab:
    """The diagram in a window of its own, as another person has it."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._context = browser.new_context(viewport={"width": 1200, "height": 720})
        self._context.set_default_timeout(WAIT_MS)
        self.page: Page = self._context.new_page()
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(url)

    @property
    def labels(self) -> Locator:
        return self.page.locator(".node text")

    def add(self, x: int, y: int, label: str) -> None:
        self.page.mouse.dblclick(x, y)
        self.page.keyboard.type(label)
        self.page.keyboard.press("Enter")

    def shows_all_of(self, *labels: str) -> None:
        for label in labels:
            expect(self.labels.filter(has_text=label)).to_have_count(1, timeout=WAIT_MS)

    def is_saved(self) -> None:
        expect(self.page.locator("#saving")).to_have_text("saved", timeout=WAIT_MS)

    def is_not_saved(self) -> None:
        expect(self.page.locator("#saving")).not_to_have_text("saved", timeout=WAIT_MS)

    def middle(self, label: str) -> tuple[float, float]:
        box = self.page.locator(".node", has_text=label).locator(".box").bounding_box()
        assert box is not None
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def close(self) -> None:
        assert self.errors == []
        self._context.close()


@pytest.fixture
def tabs(browser: Browser, router: RouterProcess) -> Iterator[tuple[Tab, Tab]]:
    one, two = Tab(browser, router.url), Tab(browser, router.url)
    one.is_saved()
    two.is_saved()
    yield one, two
    one.close()
    two.close()


def test_two_people_edit_one_diagram(tabs: tuple[Tab, Tab]) -> None:
    one, two = tabs
    one.add(300, 250, "Door")
    two.shows_all_of("Door")
    two.add(700, 250, "Window")
    one.shows_all_of("Door", "Window")
    # He drags it; she sees where it ends up.
    two.page.mouse.move(*two.middle("Door"))
    two.page.mouse.down()
    two.page.mouse.move(420, 500, steps=4)
    two.page.mouse.up()
    expect(one.page.locator(".node", has_text="Door")).to_have_attribute(
        "transform", "translate(420 453)", timeout=WAIT_MS
    )
    expect(one.page.locator(".cursor")).to_have_count(1, timeout=WAIT_MS)
    one.is_saved()


def test_boxes_are_connected_and_go_with_their_connections(tabs: tuple[Tab, Tab]) -> None:
    one, two = tabs
    one.add(300, 250, "Door")
    one.add(700, 250, "Window")
    x, y = one.middle("Door")
    one.page.mouse.move(x + 74, y)
    one.page.mouse.down()
    one.page.mouse.move(*one.middle("Window"), steps=4)
    one.page.mouse.up()
    expect(two.page.locator(".edge")).to_have_count(1, timeout=WAIT_MS)
    two.page.locator(".node", has_text="Window").focus()
    two.page.keyboard.press("Delete")
    expect(one.page.locator(".edge")).to_have_count(0, timeout=WAIT_MS)
    expect(one.labels).to_have_count(1)


def test_undo_takes_back_own_edits_alone(tabs: tuple[Tab, Tab]) -> None:
    one, two = tabs
    one.add(300, 250, "Mine")
    two.add(700, 250, "Theirs")
    one.shows_all_of("Mine", "Theirs")
    # The label, then the box.
    one.page.keyboard.press("Control+z")
    one.page.keyboard.press("Control+z")
    expect(two.labels).to_have_text(["Theirs"], timeout=WAIT_MS)
    one.page.keyboard.press("Control+z")
    two.shows_all_of("Theirs")


def test_the_keyboard_is_enough(tabs: tuple[Tab, Tab]) -> None:
    one, two = tabs
    for label in ("First", "Second"):
        one.page.keyboard.press("n")
        one.page.keyboard.type(label)
        one.page.keyboard.press("Enter")
    one.page.keyboard.press("c")
    one.page.locator(".node", has_text="First").focus()
    expect(two.page.locator(".edge")).to_have_count(1, timeout=WAIT_MS)
    before = one.middle("First")
    one.page.keyboard.press("ArrowDown")
    expect(one.page.locator(".node", has_text="First")).to_be_focused()
    assert one.middle("First")[1] == pytest.approx(before[1] + 12)
    one.page.keyboard.press("Delete")
    expect(two.labels).to_have_text(["Second"], timeout=WAIT_MS)


def test_nothing_is_lost_when_the_router_is_killed_in_mid_edit(
    browser: Browser, tmp_path: Path
) -> None:
    router = RouterProcess(tmp_path / "data")
    one, two = Tab(browser, router.url), Tab(browser, router.url)
    try:
        one.is_saved()
        two.is_saved()
        one.add(300, 200, "Saved")
        one.is_saved()
        two.shows_all_of("Saved")
        router.kill()
        one.add(300, 400, "Offline one")
        two.add(700, 400, "Offline two")
        one.is_not_saved()
        port = router.url.rpartition(":")[2]
        router.close()
        router = RouterProcess(tmp_path / "data", "--port", port)
        for tab in (one, two):
            tab.shows_all_of("Saved", "Offline one", "Offline two")
            tab.is_saved()
        assert one.page.locator(".node").count() == two.page.locator(".node").count() == 3
    finally:
        one.close()
        two.close()
        router.close()


def test_what_a_closed_tab_did_not_send_is_sent_by_the_next_one(
    browser: Browser, tmp_path: Path
) -> None:
    router = RouterProcess(tmp_path / "data")
    one = Tab(browser, router.url)
    try:
        one.is_saved()
        router.kill()
        one.add(300, 200, "Unsent")
        port = router.url.rpartition(":")[2]
        router.close()
        router = RouterProcess(tmp_path / "data", "--port", port)
        one.page.reload()
        one.shows_all_of("Unsent")
        one.is_saved()
    finally:
        one.close()
        router.close()


def test_the_console_shows_documents_and_their_readers(
    tabs: tuple[Tab, Tab], browser: Browser, router: RouterProcess
) -> None:
    one, _ = tabs
    one.add(300, 250, "Door")
    one.is_saved()
    console = Tab(browser, f"{router.url}/console")
    row = console.page.locator("tr.choice")
    expect(row).to_contain_text("diagrams/demo", timeout=WAIT_MS)
    row.focus()
    console.page.keyboard.press("Enter")
    expect(console.page.locator("#places tbody tr")).to_have_count(2, timeout=WAIT_MS)
    expect(console.page.locator("#places .health.good")).to_have_count(2, timeout=WAIT_MS)
    console.close()

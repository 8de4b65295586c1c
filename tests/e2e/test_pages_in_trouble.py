"""The pages in a real browser when something is the matter: they say so, and go on if they can."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.router_process import RouterProcess, running
from tests.e2e.test_pages_in_browser import WAIT_MS
from tests.e2e.test_pages_in_browser import browser as browser
from tests.e2e.test_pages_in_browser import router as router

pytestmark = pytest.mark.timeout(240)

FORBIDDEN = """for (const name of ["localStorage", "sessionStorage"]) {
  Object.defineProperty(window, name, { get() { throw new DOMException("no", "SecurityError"); } });
}"""
FULL = """Storage.prototype.setItem = () => {
  throw new DOMException("no", "QuotaExceededError");
};"""
# A program that shows of itself what a careless page cannot read.
STRANGER = """(url) => new Promise((resolve) => {
  const socket = new WebSocket(url, ["syncline.v1.json"]);
  const say = (message) => socket.send(JSON.stringify(message));
  const odd = { toString: 1, valueOf: 1 };
  socket.onopen = () => say({ type: "hello", client: "stranger", version: 1 });
  socket.onmessage = ({ data }) => {
    const { type, epoch } = JSON.parse(data);
    const document = "diagrams/demo";
    if (type === "welcome") say({ type: "subscribe", document });
    if (type !== "subscribed") return;
    say({ type: "presence", document, epoch, state: { name: odd, tone: odd, x: 5, y: 5 } });
    resolve();
  };
})"""


@contextmanager
def opened(browser: Browser, url: str, script: str = "") -> Iterator[Page]:
    """A page in a window of its own, which must not fail."""
    context = browser.new_context(viewport={"width": 1200, "height": 720})
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    if script:
        page.add_init_script(script)
    page.goto(url)
    yield page
    assert errors == []
    context.close()


def add(page: Page, label: str) -> None:
    page.mouse.dblclick(300, 300)
    page.keyboard.type(label)
    page.keyboard.press("Enter")


def says(page: Page, pill: str, notice: str) -> None:
    expect(page.locator("#saving")).to_have_text(pill, timeout=WAIT_MS)
    expect(page.locator("#notice")).to_contain_text(notice, timeout=WAIT_MS)


@pytest.mark.parametrize("script", [FORBIDDEN, FULL], ids=["forbidden", "full"])
def test_a_browser_that_keeps_nothing_is_told_of_and_worked_with(
    browser: Browser, router: RouterProcess, script: str
) -> None:
    with opened(browser, router.url, script) as page, opened(browser, router.url) as other:
        says(page, "saved", "lost with this tab")
        add(page, "Door")
        expect(other.locator(".node text")).to_have_text(["Door"], timeout=WAIT_MS)
        expect(page.locator("#saving")).to_have_text("saved", timeout=WAIT_MS)


def test_a_diagram_that_is_deleted_has_ended_for_who_has_it_open(
    browser: Browser, router: RouterProcess
) -> None:
    with opened(browser, f"{router.url}/?document=plan") as page:
        expect(page.locator("#saving")).to_have_text("saved", timeout=WAIT_MS)
        router.client.delete("/api/documents/plan").raise_for_status()
        says(page, "ended", "was deleted")
        add(page, "Nothing")
        says(page, "ended", "not kept")
        expect(page.locator(".node")).to_have_count(0)


def test_a_name_that_is_none_is_told_of(browser: Browser, router: RouterProcess) -> None:
    with opened(browser, f"{router.url}/?document={'x' * 201}") as page:
        says(page, "ended", "the name of a document has 1 to 200 bytes")


def test_who_has_no_token_is_told_so(browser: Browser, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s" * 64)
    with running(tmp_path / "data", SYNCLINE_DOCUMENTS_TOKEN_KEY_FILES=str(key)) as guarded:
        with opened(browser, guarded.url) as page:
            says(page, "ended", "a token is needed")
        with opened(browser, f"{guarded.url}/#token=nonsense") as page:
            says(page, "ended", "not signed by a known key")


def test_what_a_stranger_shows_stops_nobodys_page(browser: Browser, router: RouterProcess) -> None:
    with opened(browser, router.url) as page, opened(browser, f"{router.url}/console") as other:
        other.evaluate(STRANGER, router.url.replace("http", "ws") + "/sync")
        expect(page.locator(".cursor text")).to_have_text("Somebody", timeout=WAIT_MS)
        add(page, "Door")
        expect(page.locator(".node text")).to_have_text(["Door"], timeout=WAIT_MS)
        router.kill()
        expect(page.locator("#saving")).to_have_text("connecting", timeout=WAIT_MS)


# The console.


def test_the_keyboard_stays_where_it_is_while_the_console_is_drawn_anew(
    browser: Browser, router: RouterProcess
) -> None:
    console, diagram = f"{router.url}/console", f"{router.url}/?document"
    with opened(browser, console) as page, opened(browser, f"{diagram}=one"):
        row = page.locator("tr.choice", has_text="onejson")
        row.focus()
        with opened(browser, f"{diagram}=another") as other:
            expect(page.locator("tr.choice")).to_have_count(2, timeout=WAIT_MS)
            expect(row).to_be_focused()
            add(other, "Door")
            expect(page.locator("tr.choice td").nth(2)).not_to_have_text("0", timeout=WAIT_MS)
            expect(row).to_be_focused()


def test_a_router_that_hangs_is_not_called_live(browser: Browser, router: RouterProcess) -> None:
    with opened(browser, f"{router.url}/console") as page:
        state = page.locator("#state")
        expect(state).to_have_text("live", timeout=WAIT_MS)
        router.process.send_signal(signal.SIGSTOP)
        try:
            expect(state).to_have_text("router not reached", timeout=WAIT_MS)
        finally:
            router.process.send_signal(signal.SIGCONT)
        expect(state).to_have_text("live", timeout=WAIT_MS)


def test_an_operator_may_mistype_the_token(browser: Browser, tmp_path: Path) -> None:
    secret = "right-" * 8
    with (
        running(tmp_path / "data", SYNCLINE_HTTP_TOKEN=secret) as guarded,
        opened(browser, f"{guarded.url}/console", FORBIDDEN) as page,
    ):
        for wrong in ("wrong", "schlüssel…"):
            expect(page.locator("#ask")).to_be_visible(timeout=WAIT_MS)
            page.fill("#token", wrong)
            page.locator("#ask button").click()
            expect(page.locator("#state")).to_have_text("locked", timeout=WAIT_MS)
        page.fill("#token", secret)
        page.locator("#ask button").click()
        expect(page.locator("#state")).to_have_text("live", timeout=WAIT_MS)

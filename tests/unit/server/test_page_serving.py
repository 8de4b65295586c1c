"""Pages are served to everybody, as they are, and may do no more than they need."""

import httpx

from syncline.console import ENTRANCES, load_pages
from syncline.server.api import Api
from syncline.server.health import Health
from syncline.server.metrics import Metrics
from syncline.server.settings import Settings


def client(token: str = "") -> httpx.AsyncClient:
    api = Api(Settings(), Health(), Metrics(), lambda: 0, load_pages())
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(api.app(token)), base_url="http://127.0.0.1:8080"
    )


async def test_pages_need_no_token_and_the_api_does() -> None:
    async with client("t" * 32) as stranger:
        for path in load_pages():
            assert (await stranger.get(path)).status_code == 200
        assert (await stranger.get("/api/documents")).status_code == 401


async def test_a_page_may_load_nothing_from_elsewhere() -> None:
    async with client() as browser:
        for path in ENTRANCES:
            page = await browser.get(path)
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert page.headers["x-content-type-options"] == "nosniff"


async def test_what_has_not_changed_is_not_sent_again() -> None:
    async with client() as browser:
        first = await browser.get("/")
        again = await browser.get("/", headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")

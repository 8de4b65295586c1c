"""What an operator may ask for over HTTP, where it is asked for wrongly."""

import ssl
from base64 import urlsafe_b64encode

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from syncline.certificates import make_service_credentials
from syncline.errors import SynclineError
from syncline.server.answers import error_answer
from syncline.server.smp.api import SmpApi
from tests.unit.server.smp.router_rig import RouterRig
from tests.unit.server.smp.router_rig import in_memory as in_memory
from tests.unit.server.smp.transport_rig import NOW

WHOLE = make_service_credentials(NOW).chain[0]
# Of a version that X.509 does not have.
ODD = WHOLE.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020107"), 1)


def asking(rig: RouterRig) -> httpx.AsyncClient:
    """A client of the API over this router."""
    api = SmpApi(RuntimeError, shows_peers=False)
    api.attach(rig.router, "smp://router", None)

    async def answered(_request: Request, error: Exception) -> Response:
        assert isinstance(error, SynclineError)
        return error_answer(error)

    app = Starlette(routes=list(api.routes()), exception_handlers={SynclineError: answered})
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://router")


@pytest.mark.parametrize("certificate", ["nonsense", ssl.DER_cert_to_PEM_cert(ODD)])
async def test_a_certificate_that_cannot_be_read_is_a_bad_request(
    in_memory: RouterRig, certificate: str
) -> None:
    service = await in_memory.service()
    path = f"/api/services/{urlsafe_b64encode(service.service_id).decode()}/rotate"
    async with asking(in_memory) as client:
        answer = await client.post(path, json={"certificate": certificate})
    assert answer.status_code == 400
    assert "no certificates in PEM" in answer.text


async def test_what_names_no_service_is_called_an_unknown_service(in_memory: RouterRig) -> None:
    await in_memory.service()
    async with asking(in_memory) as client:
        answer = await client.get("/api/services/abc")
    assert answer.status_code == 404
    assert "service abc" in answer.text

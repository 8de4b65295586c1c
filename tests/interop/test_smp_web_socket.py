"""SMP over WebSockets that others wrote: `ws` from npm, and the one that Node has by itself."""

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.bodies import ReceivedMessage, open_received
from syncline.wire.smp.boxes import SecretBox
from tests.e2e.router_process import RouterProcess, running
from tests.interop.npm_clients import CLIENTS, WAIT_SECONDS, install, shared_folder

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> None:
    install(CLIENTS, shared_folder(tmp_path_factory))


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    with running(tmp_path_factory.mktemp("router") / "data") as started:
        yield started


@pytest.mark.parametrize("port", ["http", "smp"])
@pytest.mark.parametrize("kind", ["ws", "node"])
def test_a_client_believes_the_proof_and_uses_a_queue(
    router: RouterProcess, kind: str, port: str
) -> None:
    address = RouterAddress.parse(router.announcement["smp"])
    url = router.url.replace("http://", "ws://")
    if port == "smp":
        # A name, since addresses are not told in TLS.
        url = f"wss://localhost:{address.port}"
    ended = subprocess.run(
        ["node", "--experimental-websocket", "smp_web.mjs", kind, url, address.fingerprint.hex()],
        cwd=CLIENTS,
        # Its certificate is one that nobody has signed: the hello says who the router is.
        env=os.environ | {"NODE_TLS_REJECT_UNAUTHORIZED": "0"},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    seen = json.loads(ended.stdout)
    assert (seen["versions"], seen["sessionIdBytes"], seen["extensions"]) == ([6, 20], 32, "")
    box = SecretBox(bytes.fromhex(seen["secret"]))
    bodies: list[bytes] = []
    for message in seen["messages"]:
        received = open_received(box, bytes.fromhex(message["id"]), bytes.fromhex(message["body"]))
        assert isinstance(received, ReceivedMessage)
        bodies.append(received.body)
    assert bodies == [b"hello", b"w" * 16_048]

"""What the cryptography of one message costs by itself, on this machine, in this run.

A cycle SEND, OK, MSG, ACK, OK is, for a router: two blocks to open and three to seal, each also a
TLS record; two signatures to check; and the body to encrypt for its recipient. No router that
speaks the protocol can do with less, so this is the floor that ours is held against.
"""

import ssl
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from syncline.certificates import make_identity
from syncline.wire.smp.authorizations import is_authorized, public_key_of, sign
from syncline.wire.smp.bodies import ReceivedMessage, seal_received
from syncline.wire.smp.boxes import SecretBox
from syncline.wire.smp.chains import BlockChain
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.transmissions import BLOCK_BYTES

OPENED_COUNT, SEALED_COUNT, CHECKED_COUNT = 2, 3, 2
_REPEAT_COUNT = 200
_SEED = bytes(32)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Microseconds of CPU each."""

    seal_us: float
    open_us: float
    tls_write_us: float
    tls_read_us: float
    check_us: float
    body_us: float

    @property
    def cycle_us(self) -> float:
        return (
            OPENED_COUNT * (self.open_us + self.tls_read_us)
            + SEALED_COUNT * (self.seal_us + self.tls_write_us)
            + CHECKED_COUNT * self.check_us
            + self.body_us
        )


def measure_pieces(body_bytes: int) -> Pieces:
    content = bytes(16_000)
    sealing = BlockChain(_SEED)
    blocks = iter([sealing.seal(content) for _ in range(_REPEAT_COUNT)])
    opening = BlockChain(_SEED)
    key = public_key_of(KeyKind.ED25519, _SEED)
    signed = bytes(body_bytes + 100)
    signature = sign(KeyKind.ED25519, _SEED, signed)
    box = SecretBox(_SEED)
    message = ReceivedMessage(0, b"T", bytes(body_bytes))
    tls_write, tls_read = _tls_us()
    return Pieces(
        seal_us=_each_us(lambda: BlockChain(_SEED).seal(content)),
        open_us=_each_us(lambda: opening.open(next(blocks))),
        tls_write_us=tls_write,
        tls_read_us=tls_read,
        check_us=_each_us(lambda: is_authorized(key, signature, signed, b"", None)),
        body_us=_each_us(lambda: seal_received(box, bytes(24), message)),
    )


def _each_us(work: Callable[[], object]) -> float:
    before = time.process_time_ns()
    for _ in range(_REPEAT_COUNT):
        work()
    return (time.process_time_ns() - before) / _REPEAT_COUNT / 1e3


def _tls_us() -> tuple[float, float]:
    """One block through TLS in memory: writing it, reading it."""
    writer, reader, outgoing = _connected()
    block = bytes(BLOCK_BYTES)
    written: list[bytes] = []

    def write() -> None:
        writer.write(block)
        # Left where it is, it would be copied again and again as it grows.
        written.append(outgoing.read())

    write_us = _each_us(write)
    records = iter(written)

    def read() -> None:
        outgoing.write(next(records))
        reader.read(BLOCK_BYTES)

    return write_us, _each_us(read)


def _connected() -> tuple[ssl.SSLObject, ssl.SSLObject, ssl.MemoryBIO]:
    identity = make_identity(datetime.now(UTC))
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        pem = Path(folder) / "pem"
        pem.touch(mode=0o600)
        pem.write_bytes(identity.pem + identity.key.pem)
        server_context.load_cert_chain(pem)
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_mode = ssl.CERT_NONE
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(up, down, server_side=True)
    client = client_context.wrap_bio(down, up)
    # Each answers what the other has said; not having heard enough yet is no answer.
    while not all([_shakes(client), _shakes(server)]):
        pass
    return server, client, down


def _shakes(side: ssl.SSLObject) -> bool:
    """Whether its handshake is done."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True

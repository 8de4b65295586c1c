"""Hellos: what is in them from which version on, and that later versions may add to them."""

import pytest

from syncline.errors import MalformedMessageError
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp import failures
from syncline.wire.smp.hellos import (
    ALL_VERSIONS,
    CertifiedKey,
    ClientHello,
    RouterHello,
    ServiceAccepted,
    ServiceHello,
    ServiceRefused,
    VersionRange,
    decode_client_hello,
    decode_router_hello,
    decode_service_answer,
    encode_client_hello,
    encode_router_hello,
    encode_service_answer,
)
from syncline.wire.smp.keys import PublicKey
from tests.unit.wire.smp.vectors import AUTH_KEY, DH_KEY, EE, SESSION_ID, SIGNED_KEY

SIGNED = bytes.fromhex(SIGNED_KEY)
CERTIFIED = CertifiedKey((b"leaf", b"identity"), SIGNED)
CERTIFIED_BYTES = b"\x02\x00\x04leaf\x00\x08identity\x00\x7a" + SIGNED
KEY_HASH = bytes(range(32))
KEY_BYTES = b"\x2c" + DH_KEY.encoded
LATER = b"something of a later version"


# ----------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ((6, 20), (6, 20), 20),
        ((6, 20), (6, 6), 6),
        ((6, 20), (8, 19), 19),
        ((8, 19), (6, 8), 8),
        ((8, 19), (6, 7), None),
        ((6, 7), (8, 19), None),
    ],
)
def test_the_highest_version_of_both_is_taken(
    one: tuple[int, int], other: tuple[int, int], common: int | None
) -> None:
    assert VersionRange(*one).common(VersionRange(*other)) == common
    assert VersionRange(*other).common(VersionRange(*one)) == common


def test_versions_that_are_none_are_refused() -> None:
    with pytest.raises(MalformedMessageError, match="7 to 6"):
        VersionRange(7, 6)
    assert [version in ALL_VERSIONS for version in (5, 6, 20, 21)] == [False, True, True, False]


# ------------------------------------------------------------------------------------------- router


def test_a_router_hello() -> None:
    hello = RouterHello(ALL_VERSIONS, SESSION_ID, CERTIFIED)
    encoded = b"\x00\x06\x00\x14\x20" + SESSION_ID + CERTIFIED_BYTES
    assert encode_router_hello(hello) == encoded
    assert decode_router_hello(encoded) == hello


def test_a_router_of_version_6_alone_shows_no_key() -> None:
    hello = RouterHello(VersionRange(6, 6), SESSION_ID, CERTIFIED, b"proof")
    encoded = b"\x00\x06\x00\x06\x20" + SESSION_ID
    assert encode_router_hello(hello) == encoded
    assert decode_router_hello(encoded) == RouterHello(VersionRange(6, 6), SESSION_ID)
    assert decode_router_hello(encoded + LATER) == RouterHello(VersionRange(6, 6), SESSION_ID)


def test_a_router_may_have_no_key() -> None:
    hello = RouterHello(ALL_VERSIONS, SESSION_ID)
    assert decode_router_hello(encode_router_hello(hello)) == hello


@pytest.mark.parametrize("newest", range(7, 21))
def test_a_proof_is_shown_from_19_on(newest: int) -> None:
    proof = bytes(64)
    hello = RouterHello(VersionRange(6, newest), SESSION_ID, CERTIFIED, proof)
    plain = RouterHello(VersionRange(6, newest), SESSION_ID, CERTIFIED)
    encoded = encode_router_hello(hello)
    if newest >= 19:
        assert encoded == encode_router_hello(plain) + b"\x40" + proof
        assert decode_router_hello(encoded) == hello
        assert decode_router_hello(encoded + LATER) == hello
    else:
        assert encoded == encode_router_hello(plain)
        assert decode_router_hello(encoded + LATER) == plain


def test_what_follows_a_key_and_is_no_proof_is_ignored() -> None:
    hello = RouterHello(ALL_VERSIONS, SESSION_ID, CERTIFIED)
    assert decode_router_hello(encode_router_hello(hello) + b"\xff" + LATER) == hello


def test_a_router_hello_that_is_cut_short_is_refused() -> None:
    encoded = encode_router_hello(RouterHello(ALL_VERSIONS, SESSION_ID, CERTIFIED))
    without_key = 5 + len(SESSION_ID)
    for cut in range(len(encoded)):
        if cut != without_key:
            with pytest.raises(MalformedMessageError):
                decode_router_hello(encoded[:cut])


def test_a_chain_is_not_empty() -> None:
    with pytest.raises(MalformedMessageError, match="empty"):
        decode_router_hello(b"\x00\x06\x00\x14\x00" + b"\x00\x00\x00")


# ------------------------------------------------------------------------------------------- client


@pytest.mark.parametrize("version", range(6, 21))
@pytest.mark.parametrize("key", [None, DH_KEY])
@pytest.mark.parametrize("is_proxy", [False, True])
@pytest.mark.parametrize("service", [None, ServiceHello(ServiceRole.NOTIFIER, CERTIFIED)])
def test_a_client_hello_has_the_fields_of_its_version(
    version: int, key: PublicKey | None, is_proxy: bool, service: ServiceHello | None
) -> None:
    encoded = b"\x00" + bytes((version,)) + b"\x20" + KEY_HASH
    if version >= 7 and key:
        encoded += KEY_BYTES
    if version >= 14:
        encoded += b"T" if is_proxy else b"F"
    if version >= 16:
        encoded += b"1N" + CERTIFIED_BYTES if service else b"0"
    assert encode_client_hello(ClientHello(version, KEY_HASH, key, is_proxy, service)) == encoded
    read = ClientHello(
        version,
        KEY_HASH,
        key if version >= 7 else None,
        is_proxy and version >= 14,
        service if version >= 16 else None,
    )
    assert decode_client_hello(encoded) == read
    assert decode_client_hello(encoded + LATER) == read


@pytest.mark.parametrize("role", ServiceRole)
def test_every_role_is_read(role: ServiceRole) -> None:
    hello = ClientHello(16, KEY_HASH, DH_KEY, False, ServiceHello(role, CERTIFIED))
    encoded = encode_client_hello(hello)
    assert b"F1" + role.value.encode() + CERTIFIED_BYTES in encoded
    assert decode_client_hello(encoded) == hello


def test_a_version_that_is_not_spoken_is_read_all_the_same() -> None:
    for version in (0, 5, 21, 65_535):
        hello = ClientHello(version, KEY_HASH)
        assert decode_client_hello(encode_client_hello(hello)).version == version


@pytest.mark.parametrize("version", [6, 7, 14, 16, 20])
def test_a_client_hello_that_is_cut_short_is_refused(version: int) -> None:
    service = ServiceHello(ServiceRole.MESSAGING, CERTIFIED)
    encoded = encode_client_hello(ClientHello(version, KEY_HASH, DH_KEY, False, service))
    without_key = 2 + 1 + len(KEY_HASH)
    for cut in range(len(encoded)):
        if cut == without_key and version < 14:
            continue
        with pytest.raises(MalformedMessageError):
            decode_client_hello(encoded[:cut])


def test_only_x25519_may_encrypt_blocks() -> None:
    head = b"\x00\x14\x20" + KEY_HASH
    with pytest.raises(MalformedMessageError, match="no shared secret"):
        decode_client_hello(head + b"\x2c" + AUTH_KEY.encoded + b"F0")
    with pytest.raises(MalformedMessageError, match="no known kind"):
        decode_client_hello(head + b"\x2c" + bytes(44) + b"F0")


def test_a_role_that_is_none_is_refused() -> None:
    with pytest.raises(MalformedMessageError, match="no known role"):
        decode_client_hello(b"\x00\x14\x00F1X" + CERTIFIED_BYTES)


# ------------------------------------------------------------------------------ answer to a service


def test_a_service_is_accepted() -> None:
    answer = ServiceAccepted(EE)
    assert encode_service_answer(answer) == b"R\x18" + EE
    assert decode_service_answer(b"R\x18" + EE) == answer
    assert decode_service_answer(b"R\x18" + EE + LATER) == answer


@pytest.mark.parametrize("reason", sorted(failures.TRANSPORT_FAILURES))
def test_a_service_is_refused(reason: str) -> None:
    answer = ServiceRefused(reason)
    assert encode_service_answer(answer) == b"E" + reason.encode()
    assert decode_service_answer(b"E" + reason.encode()) == answer


@pytest.mark.parametrize("data", [b"", b"R", b"R\x18", b"E", b"EHANDSHAKE", b"X\x00", b"\xff"])
def test_no_answer_to_a_service(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode_service_answer(data)

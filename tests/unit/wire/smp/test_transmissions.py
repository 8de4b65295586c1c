"""Transmissions in blocks: what each version sends, what is damaged and how that is answered."""

import pytest

from syncline.errors import LimitExceededError
from syncline.wire.smp import failures, transmissions
from syncline.wire.smp.messages import End, Nmsg, RouterMessage, Sok, encode_message
from syncline.wire.smp.transmissions import (
    Damaged,
    Transmission,
    decode_block,
    encode_transmission,
    pack,
    signed_bytes,
)
from tests.unit.wire.smp.vectors import (
    AA,
    CORR_ID,
    EE,
    PING_CONTENT,
    QUEUE_SIGNATURE,
    SERVICE_SIGNATURE,
    SESSION_ID,
    SUB_AUTHENTICATOR,
    SUB_AUTHORIZATION,
    SUB_OF_SERVICE,
    SUB_UNAUTHORIZED,
)

NEWEST = 20
SIGNED = b"\x20" + SESSION_ID + bytes.fromhex(SUB_UNAUTHORIZED)
ED448_SIGNATURE = bytes(114)
BLOCK = [Damaged(b"", failures.BLOCK)]


def sub(
    version: int, authorization: bytes = SUB_AUTHORIZATION, service_signature: bytes | None = None
) -> bytes:
    return encode_transmission(
        version, SESSION_ID, authorization, service_signature, CORR_ID, AA, b"SUB"
    )


def content_of(*pieces: bytes) -> bytes:
    encoded = b"".join(len(piece).to_bytes(2, "big") + piece for piece in pieces)
    return bytes((len(pieces),)) + encoded


def decode_one(version: int, piece: bytes) -> Transmission | Damaged:
    (decoded,) = decode_block(version, SESSION_ID, content_of(piece))
    return decoded


# ------------------------------------------------------------------------------------ the reference


def test_signed_bytes_are_those_of_the_reference() -> None:
    assert signed_bytes(SESSION_ID, CORR_ID, AA, b"SUB") == SIGNED


def test_the_sub_of_a_service_has_the_bytes_of_the_reference() -> None:
    for version in range(16, 21):
        assert sub(version, QUEUE_SIGNATURE, SERVICE_SIGNATURE) == SUB_OF_SERVICE
        assert decode_one(version, SUB_OF_SERVICE) == Transmission(
            QUEUE_SIGNATURE, SERVICE_SIGNATURE, CORR_ID, AA, b"SUB", SIGNED
        )


def test_a_ping_has_the_bytes_of_the_reference() -> None:
    ping = encode_transmission(NEWEST, SESSION_ID, b"", None, CORR_ID, b"", b"PING")
    assert pack([ping]) == [PING_CONTENT]
    signed = b"\x20" + SESSION_ID + PING_CONTENT[4:]
    for version in range(7, 21):
        assert decode_block(version, SESSION_ID, PING_CONTENT) == [
            Transmission(b"", None, CORR_ID, b"", b"PING", signed)
        ]


# ------------------------------------------------------------------------------------- each version


@pytest.mark.parametrize("version", range(6, 21))
@pytest.mark.parametrize("authorization", [b"", SUB_AUTHORIZATION, ED448_SIGNATURE])
def test_a_transmission_has_the_fields_of_its_version(version: int, authorization: bytes) -> None:
    slot = b"0" if version >= 16 and authorization else b""
    session = b"\x20" + SESSION_ID if version == 6 else b""
    encoded = bytes((len(authorization),)) + authorization + slot + session
    encoded += bytes.fromhex(SUB_UNAUTHORIZED)
    assert sub(version, authorization) == encoded
    assert decode_one(version, encoded) == Transmission(
        authorization, None, CORR_ID, AA, b"SUB", SIGNED
    )


@pytest.mark.parametrize("version", range(6, 21))
def test_an_authenticator_is_known_from_7_on(version: int) -> None:
    decoded = decode_one(version, sub(version, SUB_AUTHENTICATOR))
    if version >= 7:
        assert decoded == Transmission(SUB_AUTHENTICATOR, None, CORR_ID, AA, b"SUB", SIGNED)
    else:
        assert decoded == Damaged(CORR_ID, failures.BLOCK)


def test_in_6_the_session_id_must_match() -> None:
    for wrong in (b"", bytes(32), SESSION_ID[:-1], SESSION_ID + b"\0"):
        foreign = encode_transmission(6, wrong, SUB_AUTHORIZATION, None, CORR_ID, AA, b"SUB")
        assert decode_one(6, foreign) == Damaged(CORR_ID, failures.SESSION)


def test_ids_may_be_of_any_length() -> None:
    for corr_id, entity_id in ((b"", b""), (b"1234", b""), (bytes(255), bytes(255))):
        encoded = encode_transmission(NEWEST, SESSION_ID, b"", None, corr_id, entity_id, b"")
        signed = signed_bytes(SESSION_ID, corr_id, entity_id, b"")
        assert decode_one(NEWEST, encoded) == Transmission(
            b"", None, corr_id, entity_id, b"", signed
        )


def test_a_service_signature_stands_beside_an_authorization_alone() -> None:
    for version, authorization in ((15, SUB_AUTHORIZATION), (NEWEST, b"")):
        with pytest.raises(ValueError, match="service signature"):
            sub(version, authorization, SERVICE_SIGNATURE)


# ------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("version", range(6, 21))
@pytest.mark.parametrize("length", [1, 32, 63, 65, 79, 81, 113, 115, 255])
def test_an_authorization_of_another_length_is_answered_with_its_correlation_id(
    version: int, length: int
) -> None:
    assert decode_one(version, sub(version, bytes(length))) == Damaged(CORR_ID, failures.BLOCK)


@pytest.mark.parametrize("length", [0, 63, 65, 80, 114])
def test_a_service_signature_of_another_length_is_answered_without_ids(length: int) -> None:
    wrong = sub(NEWEST, service_signature=bytes(length))
    assert decode_one(NEWEST, wrong) == Damaged(b"", failures.BLOCK)


def test_a_slot_that_is_neither_empty_nor_full_is_damage() -> None:
    slot = 1 + len(SUB_AUTHORIZATION)
    whole = sub(NEWEST)
    wrong = whole[:slot] + b"2" + whole[slot + 1 :]
    assert decode_one(NEWEST, wrong) == Damaged(b"", failures.BLOCK)


@pytest.mark.parametrize("version", [6, 7, 16])
@pytest.mark.parametrize("service_signature", [None, SERVICE_SIGNATURE])
def test_a_transmission_that_is_cut_short_is_answered_without_ids(
    version: int, service_signature: bytes | None
) -> None:
    whole = sub(version, service_signature=service_signature if version >= 16 else None)
    for cut in range(len(whole) - len(b"SUB")):
        assert decode_one(version, whole[:cut]) == Damaged(b"", failures.BLOCK)


def test_a_damaged_transmission_leaves_its_neighbours_alone() -> None:
    content = content_of(sub(NEWEST), b"\xff", sub(NEWEST))
    decoded = decode_block(NEWEST, SESSION_ID, content)
    assert decoded[1] == Damaged(b"", failures.BLOCK)
    assert (
        decoded[0]
        == decoded[2]
        == Transmission(SUB_AUTHORIZATION, None, CORR_ID, AA, b"SUB", SIGNED)
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"\x00" + PING_CONTENT[1:],
        PING_CONTENT + b"\x00",
        PING_CONTENT + PING_CONTENT[1:],
        b"\x02" + PING_CONTENT[1:],
        b"\x02" + PING_CONTENT[1:] + b"\x00",
        b"\x02" + PING_CONTENT[1:] + b"\x00\x01",
        b"\xff" + PING_CONTENT[1:],
        b"\x01\xff\xff" + PING_CONTENT[3:],
    ],
)
def test_a_content_that_is_none_is_answered_once(content: bytes) -> None:
    assert decode_block(NEWEST, SESSION_ID, content) == BLOCK


def test_a_content_that_is_cut_short_is_answered_once() -> None:
    content = content_of(sub(NEWEST), sub(NEWEST))
    for cut in range(len(content)):
        assert decode_block(NEWEST, SESSION_ID, content[:cut]) == BLOCK


# ------------------------------------------------------------------------------------------ packing


def from_router(message: RouterMessage) -> bytes:
    return encode_transmission(
        NEWEST, SESSION_ID, b"", None, b"", AA, encode_message(NEWEST, message)
    )


def test_a_block_is_filled_to_16365_bytes() -> None:
    assert transmissions.TRANSMISSIONS_BYTES_MAX == 16_365
    assert [len(content) for content in pack([bytes(16_363)])] == [16_366]
    exact = [bytes(8_000), bytes(16_365 - 8_002 - 2)]
    assert [content[0] for content in pack(exact)] == [2]
    exact[1] += b"\0"
    assert [content[0] for content in pack(exact)] == [1, 1]
    with pytest.raises(LimitExceededError, match="16364, the limit is 16363"):
        pack([b"", bytes(16_364)])


@pytest.mark.parametrize(
    ("transmission", "size", "count"),
    [
        (sub(NEWEST), 119, 135),
        (sub(NEWEST, SUB_AUTHENTICATOR), 135, 119),
        (SUB_OF_SERVICE, 184, 87),
        (encode_transmission(NEWEST, SESSION_ID, b"", None, CORR_ID, AA, b"SOK 0"), 56, 255),
        (
            encode_transmission(
                NEWEST, SESSION_ID, b"", None, CORR_ID, AA, encode_message(NEWEST, Sok(EE))
            ),
            81,
            197,
        ),
        (from_router(Nmsg(CORR_ID, bytes(144))), 201, 80),
        (from_router(End()), 30, 255),
    ],
    ids=["SUB", "SUB, X25519", "SUB of a service", "SOK", "SOK of a service", "NMSG", "END"],
)
def test_how_many_fit_into_a_block(transmission: bytes, size: int, count: int) -> None:
    assert len(transmission) == size
    contents = pack([transmission] * (2 * count + 1))
    assert [content[0] for content in contents] == [count, count, 1]
    for content in contents:
        assert len(content) - 1 == content[0] * (size + 2) <= 16_365


def test_nothing_needs_no_block() -> None:
    assert pack([]) == []


def test_what_is_packed_comes_out_in_order() -> None:
    sent = [
        encode_transmission(NEWEST, SESSION_ID, b"", None, b"%d" % number, AA, bytes(number * 30))
        for number in range(300)
    ]
    received = [
        each
        for content in pack(iter(sent))
        for each in decode_block(NEWEST, SESSION_ID, content)
        if isinstance(each, Transmission)
    ]
    assert [(each.corr_id, each.body) for each in received] == [
        (b"%d" % number, bytes(number * 30)) for number in range(300)
    ]


def test_nothing_that_authorizes_is_shown() -> None:
    shown = repr(decode_one(NEWEST, SUB_OF_SERVICE))
    assert "authorization" not in shown
    assert "signature" not in shown

"""Addresses of routers, as text and as PRXY carries them."""

import pytest

from syncline.errors import MalformedMessageError
from syncline.wire.smp.addresses import (
    HOST_COUNT_MAX,
    RouterAddress,
    read_address,
    write_address,
)
from syncline.wire.smp.primitives import Reader

FINGERPRINT = bytes(range(0xE0, 0x100))
ENCODED = "4OHi4-Tl5ufo6err7O3u7_Dx8vP09fb3-Pn6-_z9_v8="


@pytest.mark.parametrize(
    ("rest", "address"),
    [
        ("@a.example", RouterAddress(FINGERPRINT, ("a.example",))),
        ("@a.example:443", RouterAddress(FINGERPRINT, ("a.example",), 443)),
        ("@a.example,b.onion", RouterAddress(FINGERPRINT, ("a.example", "b.onion"))),
        ("@127.0.0.1:1", RouterAddress(FINGERPRINT, ("127.0.0.1",), 1)),
        ("@[::1],a.example:65535", RouterAddress(FINGERPRINT, ("::1", "a.example"), 65_535)),
        (":p-w+~!@a.example", RouterAddress(FINGERPRINT, ("a.example",), password="p-w+~!")),
    ],
)
def test_an_address_is_read_as_it_is_written(rest: str, address: RouterAddress) -> None:
    text = f"smp://{ENCODED}{rest}"
    assert RouterAddress.parse(text) == address
    assert address.full_text() == text


def test_the_usual_port_is_left_out_but_read() -> None:
    address = RouterAddress.parse(f"smp://{ENCODED}@a.example:5223/")
    assert address.port == 5223
    assert str(address) == f"smp://{ENCODED}@a.example"


def test_a_password_is_not_shown() -> None:
    address = RouterAddress.parse(f"smp://{ENCODED}:hidden@a.example")
    assert "hidden" not in str(address)
    assert "hidden" not in repr(address)
    with pytest.raises(MalformedMessageError) as refused:
        RouterAddress.parse(f"smp://{ENCODED}:hidden@")
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "smp://",
        f"smp://{ENCODED}",
        f"smp://{ENCODED}@",
        f"smp://{ENCODED[:-1]}@a.example",
        f"smp://{ENCODED[1:]}@a.example",
        f"smp://{ENCODED}=@a.example",
        f"xftp://{ENCODED}@a.example",
        f"smp://{ENCODED}:@a.example",
        f"smp://{ENCODED}:a b@a.example",
        f"smp://{ENCODED}:a/b@a.example",
        f"smp://{ENCODED}@a.example:",
        f"smp://{ENCODED}@a.example:0",
        f"smp://{ENCODED}@a.example:65536",
        f"smp://{ENCODED}@a.example:x",
        f"smp://{ENCODED}@a.example,",
        f"smp://{ENCODED}@,a.example",
        f"smp://{ENCODED}@a..-",
        f"smp://{ENCODED}@-a",
        f"smp://{ENCODED}@a b",
        f"smp://{ENCODED}@::1",
        f"smp://{ENCODED}@[nothing]:1",
        f"smp://{ENCODED}@[a.example:]",
        f"smp://{ENCODED}@{'a' * 254}",
        f"smp://{ENCODED}@" + ",".join(["a.example"] * (HOST_COUNT_MAX + 1)),
    ],
)
def test_no_address(text: str) -> None:
    with pytest.raises(MalformedMessageError):
        RouterAddress.parse(text)


def test_what_cannot_be_written_cannot_be_made() -> None:
    with pytest.raises(MalformedMessageError, match="32 bytes"):
        RouterAddress(b"short", ("a.example",))
    with pytest.raises(MalformedMessageError, match="no host"):
        RouterAddress(FINGERPRINT, ())
    with pytest.raises(MalformedMessageError, match="password"):
        RouterAddress(FINGERPRINT, ("a.example",), password="a@b")


def test_the_binary_form() -> None:
    address = RouterAddress(FINGERPRINT, ("a.example", "::1"), 443)
    encoded = b"\x02\x09a.example\x05[::1]\x03443\x20" + FINGERPRINT
    assert write_address(address) == encoded
    assert read_address(Reader(encoded)) == address


def test_the_binary_form_may_do_without_a_port_and_brackets() -> None:
    encoded = b"\x02\x09a.example\x03::1\x00\x20" + FINGERPRINT
    assert read_address(Reader(encoded)) == RouterAddress(FINGERPRINT, ("a.example", "::1"), 5223)


@pytest.mark.parametrize(
    "encoded",
    [
        b"\x00\x00\x20" + FINGERPRINT,
        b"\x01\x00\x00\x20" + FINGERPRINT,
        b"\x01\x01\xff\x00\x20" + FINGERPRINT,
        b"\x01\x03a b\x00\x20" + FINGERPRINT,
        b"\x01\x01a\x010\x20" + FINGERPRINT,
        b"\x01\x01a\x02+1\x20" + FINGERPRINT,
        b"\x01\x01a\x06000001\x20" + FINGERPRINT,
        b"\x01\x01a\x00\x1f" + FINGERPRINT[1:],
        b"\x11" + b"\x01a" * 17 + b"\x00\x20" + FINGERPRINT,
    ],
)
def test_no_binary_address(encoded: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        read_address(Reader(encoded))

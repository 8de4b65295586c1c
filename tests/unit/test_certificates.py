"""Identities of routers and services, and chains that hold or do not."""

import os
from base64 import urlsafe_b64decode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from syncline import certificates
from syncline.certificates import (
    Identity,
    SigningKey,
    check_chain,
    has_identity,
    identity_of_chain,
    key_of_certificate,
    load_identity,
    make_identity,
    make_service_credentials,
    open_identity,
    renew_leaf,
    rotate,
    save_identity,
)
from syncline.errors import ConfigError, MalformedMessageError
from syncline.wire.smp.authorizations import is_signed
from syncline.wire.smp.keys import KeyKind

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
KINDS = [KeyKind.ED25519, KeyKind.ED448]
IDENTITY = make_identity(NOW)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def rsa_certificate() -> tuple[bytes, bytes]:
    key = generate_private_key(65_537, 2_048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rsa")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
    )
    certificate = builder.sign(key, SHA256()).public_bytes(Encoding.DER)
    return certificate, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


# Making.


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_identity_is_a_leaf_and_a_ca_that_hold(kind: KeyKind) -> None:
    identity = make_identity(NOW, kind)
    leaf, ca = (x509.load_der_x509_certificate(der) for der in identity.chain)
    check_chain(identity.chain, NOW, count_min=2)
    assert leaf.version is ca.version is x509.Version.v3
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert key_of_certificate(identity.chain[0]) == identity.key.public
    assert identity.ca_key is not None
    assert key_of_certificate(identity.chain[1]) == identity.ca_key.public
    assert identity.key.kind is kind


def test_the_fingerprint_is_the_hash_of_the_certificate_above_the_leaf() -> None:
    assert IDENTITY.fingerprint == sha256(IDENTITY.chain[1]).digest()
    assert identity_of_chain([b"leaf", b"identity", b"ca"]) == sha256(b"identity").digest()
    assert identity_of_chain([b"only"]) == sha256(b"only").digest()


def test_renewing_changes_the_leaf_and_its_key_and_not_the_address() -> None:
    later = NOW + timedelta(days=3_000)
    renewed = renew_leaf(IDENTITY, later)
    assert renewed.fingerprint == IDENTITY.fingerprint
    assert renewed.chain[1:] == IDENTITY.chain[1:]
    assert renewed.chain[0] != IDENTITY.chain[0]
    assert renewed.key != IDENTITY.key
    check_chain(renewed.chain, later + timedelta(days=3_000))
    assert renewed.leaf_until == later + timedelta(days=3_650)


def test_a_leaf_does_not_outlive_its_ca() -> None:
    identity = make_identity(NOW, ca_days=10, leaf_days=20)
    assert identity.leaf_until == NOW + timedelta(days=10)


def test_renewing_needs_the_key_of_the_ca() -> None:
    with pytest.raises(ConfigError, match=r"ca\.key"):
        renew_leaf(Identity(IDENTITY.chain, IDENTITY.key), NOW)


def test_a_longer_chain_is_not_renewed() -> None:
    longer = Identity((*IDENTITY.chain, IDENTITY.chain[1]), IDENTITY.key, IDENTITY.ca_key)
    with pytest.raises(ConfigError, match="a leaf and a CA"):
        renew_leaf(longer, NOW)


@pytest.mark.parametrize("kind", KINDS)
def test_rotating_changes_the_address_and_keeps_the_kind_of_keys(kind: KeyKind) -> None:
    identity = make_identity(NOW, kind)
    rotated = rotate(identity, NOW)
    assert rotated.fingerprint != identity.fingerprint
    assert rotated.key.kind is kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_service_has_one_certificate_that_it_signed_itself(kind: KeyKind) -> None:
    credentials = make_service_credentials(NOW, kind)
    assert len(credentials.chain) == 1
    check_chain(credentials.chain, NOW)
    assert key_of_certificate(credentials.chain[0]) == credentials.key.public
    assert credentials.fingerprint == sha256(credentials.chain[0]).digest()


def test_private_keys_are_not_shown() -> None:
    shown = repr(IDENTITY) + str(IDENTITY.key) + repr(make_service_credentials(NOW))
    assert "raw" not in shown
    assert repr(IDENTITY.key.raw) not in shown


@pytest.mark.parametrize("kind", KINDS)
def test_a_signing_key_survives_its_encoding_and_signs(kind: KeyKind) -> None:
    key = SigningKey.make(kind)
    assert SigningKey.decode(key.encoded) == key
    assert is_signed(key.public, key.sign(b"data"), b"data")


def test_an_encoded_ed25519_key_has_the_shape_that_others_know() -> None:
    encoded = SigningKey(KeyKind.ED25519, b"\x01" * 32).encoded
    assert encoded.hex() == "302e020100300506032b657004220420" + "01" * 32


def test_other_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"PKCS#8"):
        SigningKey.decode(b"nothing")
    with pytest.raises(ConfigError, match="neither"):
        SigningKey.of(generate_private_key(65_537, 2_048))
    with pytest.raises(ValueError, match="X25519"):
        SigningKey.make(KeyKind.X25519)


# Checking.


@pytest.mark.parametrize("count", [0, 5])
def test_a_chain_has_one_to_four_certificates(count: int) -> None:
    with pytest.raises(MalformedMessageError, match="1 to 4"):
        check_chain([IDENTITY.chain[1]] * count, NOW)


def test_a_router_chain_has_at_least_two_certificates() -> None:
    with pytest.raises(MalformedMessageError, match="2 to 4"):
        check_chain(IDENTITY.chain[1:], NOW, count_min=2)


def test_a_single_certificate_must_be_signed_by_itself() -> None:
    check_chain(IDENTITY.chain[1:], NOW)
    with pytest.raises(MalformedMessageError, match="not signed"):
        check_chain(IDENTITY.chain[:1], NOW)


def test_the_leaf_of_another_ca_is_refused() -> None:
    other = make_identity(NOW)
    with pytest.raises(MalformedMessageError, match="not signed"):
        check_chain((IDENTITY.chain[0], other.chain[1]), NOW)


def test_every_link_of_a_longer_chain_counts() -> None:
    ca = IDENTITY.chain[1]
    check_chain((IDENTITY.chain[0], ca, ca, ca), NOW)
    with pytest.raises(MalformedMessageError, match="not signed"):
        check_chain((IDENTITY.chain[0], ca, make_identity(NOW).chain[1]), NOW)


@pytest.mark.parametrize("days", [-2, 31, 101])
def test_a_chain_out_of_date_is_refused(days: int) -> None:
    identity = make_identity(NOW, ca_days=100, leaf_days=30)
    check_chain(identity.chain, NOW + timedelta(days=29))
    with pytest.raises(MalformedMessageError, match="out of date"):
        check_chain(identity.chain, NOW + timedelta(days=days))


def test_a_changed_certificate_is_refused() -> None:
    leaf = bytearray(IDENTITY.chain[0])
    leaf[-1] ^= 1
    with pytest.raises(MalformedMessageError, match="not signed"):
        check_chain((bytes(leaf), IDENTITY.chain[1]), NOW)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4))
def test_what_is_no_certificate_is_refused(chain: list[bytes]) -> None:
    with pytest.raises(MalformedMessageError):
        check_chain(chain, NOW)
    with pytest.raises(MalformedMessageError):
        key_of_certificate(chain[0])


# A negative serial number is still read, with a warning.
@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
def test_a_certificate_with_any_changed_bit_is_refused() -> None:
    leaf_bytes = len(IDENTITY.chain[0])
    # How many bits of the signature's last byte are not its own: none, and nobody looks.
    unused_count_at = leaf_bytes - 65
    for at in range(leaf_bytes * 8):
        if at // 8 == unused_count_at:
            continue
        leaf = bytearray(IDENTITY.chain[0])
        leaf[at // 8] ^= 1 << at % 8
        with pytest.raises(MalformedMessageError):
            check_chain((bytes(leaf), IDENTITY.chain[1]), NOW)


def test_a_key_that_is_not_used_here_is_refused_with_its_certificate() -> None:
    with pytest.raises(MalformedMessageError, match="no known kind"):
        key_of_certificate(rsa_certificate()[0])


# Keeping.


@pytest.mark.parametrize("kind", KINDS)
def test_an_identity_is_made_once_and_found_again(tmp_path: Path, kind: KeyKind) -> None:
    folder = tmp_path / "identity"
    assert not has_identity(folder)
    made = open_identity(folder, NOW, kind)
    assert made.key.kind is kind
    assert open_identity(folder, NOW + timedelta(days=1)) == made == load_identity(folder)


def test_a_folder_has_the_promised_files_and_keys_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "identity"
    save_identity(folder, IDENTITY)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["ca.crt", "ca.key", "fingerprint", "router.crt", "router.key"]
    assert mode(folder / "ca.key") == mode(folder / "router.key") == 0o600
    assert mode(folder) == 0o700
    found = urlsafe_b64decode((folder / "fingerprint").read_text().strip())
    assert found == IDENTITY.fingerprint


@pytest.mark.parametrize("name", ["ca.key", "router.key"])
@pytest.mark.parametrize("bits", [0o640, 0o604, 0o660])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, name: str, bits: int) -> None:
    save_identity(tmp_path, IDENTITY)
    (tmp_path / name).chmod(bits)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_identity(tmp_path)


@pytest.mark.parametrize(
    ("bits", "is_fine"), [(0o400, True), (0o640, True), (0o660, False), (0o604, False)]
)
def test_a_key_that_root_handed_to_our_group_is_fine(
    monkeypatch: pytest.MonkeyPatch, bits: int, is_fine: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    found = os.stat_result((0o100_000 | bits, 0, 0, 1, 0, 1_000, 0, 0, 0, 0))
    check = certificates._check_secret  # pyright: ignore[reportPrivateUsage]
    if is_fine:
        check(Path("router.key"), found)
    else:
        with pytest.raises(ConfigError):
            check(Path("router.key"), found)


def test_the_key_of_the_ca_may_be_kept_elsewhere(tmp_path: Path) -> None:
    save_identity(tmp_path, IDENTITY)
    (tmp_path / "ca.key").unlink()
    found = load_identity(tmp_path)
    assert found == Identity(IDENTITY.chain, IDENTITY.key)
    save_identity(tmp_path, found)
    assert load_identity(tmp_path) == found


def test_saving_without_the_key_of_the_ca_leaves_it_where_it_is(tmp_path: Path) -> None:
    save_identity(tmp_path, IDENTITY)
    save_identity(tmp_path, Identity(IDENTITY.chain, IDENTITY.key))
    assert load_identity(tmp_path) == IDENTITY


def test_the_key_of_another_ca_does_not_stay(tmp_path: Path) -> None:
    save_identity(tmp_path, make_identity(NOW))
    foreign = Identity(IDENTITY.chain, IDENTITY.key)
    save_identity(tmp_path, foreign)
    assert load_identity(tmp_path) == foreign


def test_keys_that_do_not_fit_the_chain_are_refused(tmp_path: Path) -> None:
    save_identity(tmp_path, IDENTITY)
    (tmp_path / "router.key").write_bytes(SigningKey.make().pem)
    with pytest.raises(ConfigError, match="no key of its certificate"):
        load_identity(tmp_path)


@pytest.mark.parametrize("name", ["router.crt", "router.key"])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"-----BEGIN PRIVATE KEY-----\nAA==\n"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    save_identity(tmp_path, IDENTITY)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=name):
        open_identity(tmp_path, NOW)


def test_a_key_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    save_identity(tmp_path, IDENTITY)
    damaged = b"-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"
    (tmp_path / "router.key").write_bytes(damaged)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_identity(tmp_path)


def test_a_chain_with_another_kind_of_key_is_refused(tmp_path: Path) -> None:
    save_identity(tmp_path, IDENTITY)
    certificate, key = rsa_certificate()
    pem = x509.load_der_x509_certificate(certificate).public_bytes(Encoding.PEM)
    (tmp_path / "router.crt").write_bytes(pem * 2)
    (tmp_path / "router.key").write_bytes(key)
    with pytest.raises(ConfigError, match="of no use"):
        load_identity(tmp_path)


def test_a_lost_chain_is_not_replaced_by_a_new_identity(tmp_path: Path) -> None:
    save_identity(tmp_path, IDENTITY)
    (tmp_path / "router.crt").unlink()
    with pytest.raises(ConfigError, match=r"router\.crt"):
        open_identity(tmp_path, NOW)
    assert IDENTITY.ca_key is not None
    assert (tmp_path / "ca.key").read_bytes() == IDENTITY.ca_key.pem


def test_a_chain_of_one_is_no_identity_of_a_router(tmp_path: Path) -> None:
    save_identity(tmp_path, IDENTITY)
    chain = (tmp_path / "ca.crt").read_bytes()
    (tmp_path / "router.crt").write_bytes(chain)
    with pytest.raises(ConfigError, match="1 certificates"):
        load_identity(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        open_identity(tmp_path / "not" / "there", NOW)


def test_the_identity_before_a_rotation_is_kept_apart(tmp_path: Path) -> None:
    save_identity(tmp_path, IDENTITY)
    save_identity(tmp_path, renew_leaf(IDENTITY, NOW))
    assert not (tmp_path / "previous.pem").exists()
    before = load_identity(tmp_path)
    save_identity(tmp_path, rotate(before, NOW))
    assert mode(tmp_path / "previous.pem") == 0o600
    kept = (tmp_path / "previous.pem").read_bytes()
    assert before.ca_key is not None
    assert kept == before.pem + before.key.pem + before.ca_key.pem


class PowerCut(BaseException):
    """Nothing catches it."""


CHANGES: list[Callable[[Identity, datetime], Identity]] = [renew_leaf, rotate]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("step", range(20))
def test_a_crash_leaves_the_old_identity_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, change: Callable[..., Identity]
) -> None:
    save_identity(tmp_path, IDENTITY)
    after = change(IDENTITY, NOW)
    left = iter([True] * step)
    rename = Path.rename

    def cut(path: Path, target: Path) -> Path:
        if next(left, False):
            return rename(path, target)
        raise PowerCut

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", cut)
        is_cut = True
        try:
            save_identity(tmp_path, after)
            is_cut = False
        except PowerCut:
            pass
    assert load_identity(tmp_path) in ([IDENTITY, after] if is_cut else [after])
    save_identity(tmp_path, after)
    assert load_identity(tmp_path) == after
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".new")]


@pytest.mark.parametrize("step", range(6))
def test_a_crash_before_the_first_identity_is_whole_leaves_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    left = iter([True] * step)
    rename = Path.rename

    def cut(path: Path, target: Path) -> Path:
        if next(left, False):
            return rename(path, target)
        raise PowerCut

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", cut)
        with pytest.raises(PowerCut):
            save_identity(tmp_path, IDENTITY)
    found = open_identity(tmp_path, NOW)
    assert found == load_identity(tmp_path)


def test_files_and_their_folder_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync, rename = os.fsync, Path.rename

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        synced.append(f"{path.name} to {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", renamed)
    save_identity(tmp_path, IDENTITY)
    assert synced[:3] == [
        ".router.key.new",
        ".router.key.new to router.key",
        tmp_path.name,
    ]
    assert len(synced) % 3 == 0
    assert synced[2::3] == [tmp_path.name] * (len(synced) // 3)

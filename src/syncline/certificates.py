"""Certificates: who a router is, who a service is, and whether a chain holds.

A router has two certificates. The upper one (CA) is its identity: clients know its SHA-256, the
fingerprint, from the router's address. The lower one (leaf) is what it works with from day to day;
it is renewed without anybody noticing. A service has a single certificate that it signed itself.

A folder holds an identity as

    router.crt    the chain, leaf first: this file alone decides what the identity is
    router.key    the key of the leaf, 0600
    ca.key        the key of the CA, 0600; needed for renewing only, and may be kept elsewhere
    ca.crt        the CA once more, for people
    fingerprint   base64url, for people
    previous.pem  0600: the identity before the last rotation, in case that was a mistake

Files are replaced one by one, each at once and synced. While a key changes, its file holds both
keys and the one that fits the chain is used, so a crash at any point leaves the old identity or the
new one, whole.

Keys are Ed25519 or Ed448. What a peer sent raises MalformedMessageError, what is in a folder
ConfigError.
"""

import os
import re
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from syncline.errors import ConfigError, MalformedMessageError
from syncline.values.limits import KIB
from syncline.wire.smp.authorizations import public_key_of, sign
from syncline.wire.smp.keys import KeyKind, PublicKey

CHAIN_COUNT_MAX: Final = 4
# A router cannot be told from another without its identity above the leaf.
ROUTER_CHAIN_COUNT_MIN: Final = 2
FILE_BYTES_MAX: Final = 64 * KIB
CA_DAYS: Final = 36_500
LEAF_DAYS: Final = 3_650
SERVICE_DAYS: Final = 36_500
# A peer's clock may be behind ours.
_BACKDATED: Final = timedelta(days=1)

_CHAIN, _KEY = "router.crt", "router.key"
_CA, _CA_KEY = "ca.crt", "ca.key"
_FINGERPRINT, _PREVIOUS = "fingerprint", "previous.pem"
_PEM_KEY: Final = re.compile(b"-----BEGIN PRIVATE KEY-----.+?-----END PRIVATE KEY-----", re.DOTALL)

# What the library says of bytes that are not what they should be.
_UNREADABLE: Final = (ValueError, TypeError, x509.InvalidVersion, UnsupportedAlgorithm)

_PrivateKey = Ed25519PrivateKey | Ed448PrivateKey


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key of a certificate, raw."""

    kind: KeyKind
    raw: bytes = field(repr=False)

    @classmethod
    def make(cls, kind: KeyKind = KeyKind.ED25519) -> Self:
        if kind is KeyKind.ED25519:
            return cls(kind, Ed25519PrivateKey.generate().private_bytes_raw())
        if kind is KeyKind.ED448:
            return cls(kind, Ed448PrivateKey.generate().private_bytes_raw())
        raise ValueError(f"no certificate has a key of kind {kind.value} here")

    @classmethod
    def decode(cls, pkcs8: bytes) -> Self:
        """Raises ConfigError."""
        try:
            key = load_der_private_key(pkcs8, None)
        except _UNREADABLE:
            raise ConfigError("a private key cannot be read: PKCS#8 is expected") from None
        return cls.of(key)

    @classmethod
    def of(cls, key: object) -> Self:
        """Of what a library opened. Raises ConfigError."""
        if isinstance(key, Ed25519PrivateKey):
            return cls(KeyKind.ED25519, key.private_bytes_raw())
        if isinstance(key, Ed448PrivateKey):
            return cls(KeyKind.ED448, key.private_bytes_raw())
        raise ConfigError("a private key is neither Ed25519 nor Ed448, and nothing else is used")

    @property
    def public(self) -> PublicKey:
        return public_key_of(self.kind, self.raw)

    @property
    def encoded(self) -> bytes:
        """PKCS#8, DER."""
        return self.opened.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())

    @property
    def pem(self) -> bytes:
        return self.opened.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def opened(self) -> _PrivateKey:
        """For libraries that want it as an object."""
        if self.kind is KeyKind.ED448:
            return Ed448PrivateKey.from_private_bytes(self.raw)
        return Ed25519PrivateKey.from_private_bytes(self.raw)

    def sign(self, data: bytes) -> bytes:
        return sign(self.kind, self.raw, data)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a router is. `ca_key` is None where it is kept elsewhere."""

    chain: tuple[bytes, ...]
    key: SigningKey
    ca_key: SigningKey | None = field(default=None, repr=False)

    @property
    def fingerprint(self) -> bytes:
        return identity_of_chain(self.chain)

    @property
    def leaf_until(self) -> datetime:
        return x509.load_der_x509_certificate(self.chain[0]).not_valid_after_utc

    @property
    def pem(self) -> bytes:
        """The chain."""
        return b"".join(map(_as_pem, self.chain))


@dataclass(frozen=True, slots=True)
class ServiceCredentials:
    """What a service shows. Its certificate is who it is: with another, it is another service."""

    chain: tuple[bytes, ...]
    key: SigningKey

    @property
    def fingerprint(self) -> bytes:
        return identity_of_chain(self.chain)


# Making.


def make_identity(
    now: datetime,
    kind: KeyKind = KeyKind.ED25519,
    *,
    ca_days: int = CA_DAYS,
    leaf_days: int = LEAF_DAYS,
) -> Identity:
    ca_key = SigningKey.make(kind)
    name = _name("Syncline CA")
    ca = _signed(name, name, ca_key, ca_key, now, now + timedelta(days=ca_days), is_ca=True)
    return _with_leaf(ca, ca_key, now, leaf_days)


def renew_leaf(identity: Identity, now: datetime, *, leaf_days: int = LEAF_DAYS) -> Identity:
    """A new leaf with a new key; the address stays. Raises ConfigError without the CA's key."""
    if identity.ca_key is None:
        raise ConfigError(f"the leaf is renewed with the CA's key: bring {_CA_KEY} back for it")
    if len(identity.chain) != ROUTER_CHAIN_COUNT_MIN:
        raise ConfigError("only a chain of a leaf and a CA is renewed; make this leaf yourself")
    return _with_leaf(identity.chain[1], identity.ca_key, now, leaf_days)


def rotate(
    identity: Identity, now: datetime, *, ca_days: int = CA_DAYS, leaf_days: int = LEAF_DAYS
) -> Identity:
    """A new CA: the router has another address from here on, and nobody knows it yet."""
    return make_identity(now, identity.key.kind, ca_days=ca_days, leaf_days=leaf_days)


def make_service_credentials(
    now: datetime, kind: KeyKind = KeyKind.ED25519, *, days: int = SERVICE_DAYS
) -> ServiceCredentials:
    key = SigningKey.make(kind)
    name = _name("Syncline service")
    certificate = _signed(name, name, key, key, now, now + timedelta(days=days))
    return ServiceCredentials((certificate,), key)


def _with_leaf(ca: bytes, ca_key: SigningKey, now: datetime, days: int) -> Identity:
    key = SigningKey.make(ca_key.kind)
    issuer = x509.load_der_x509_certificate(ca)
    # A leaf that outlives its CA would promise what it cannot keep.
    until = min(now + timedelta(days=days), issuer.not_valid_after_utc)
    leaf = _signed(_name("Syncline router"), issuer.subject, key, ca_key, now, until)
    return Identity((leaf, ca), key, ca_key)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: SigningKey,
    issuer_key: SigningKey,
    now: datetime,
    until: datetime,
    *,
    is_ca: bool = False,
) -> bytes:
    """A certificate of `key`, DER."""
    public = key.opened.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.opened.public_key()),
            critical=False,
        )
    )
    if is_ca:
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        ).add_extension(_CA_USAGE, critical=True)
    return builder.sign(issuer_key.opened, None).public_bytes(Encoding.DER)


_CA_USAGE: Final = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


# Checking.


def identity_of_chain(chain: Sequence[bytes]) -> bytes:
    """SHA-256 of the certificate above the leaf, or of the only one."""
    return sha256(chain[min(1, len(chain) - 1)]).digest()


def check_chain(chain: Sequence[bytes], now: datetime, *, count_min: int = 1) -> None:
    """Each is signed by the next, none is out of date; a single one is signed by itself.

    Whether the identity is somebody's is another question. Raises MalformedMessageError.
    """
    if not count_min <= len(chain) <= CHAIN_COUNT_MAX:
        raise MalformedMessageError(
            f"a chain has {count_min} to {CHAIN_COUNT_MAX} certificates, not {len(chain)}"
        )
    certificates = [_certificate(der) for der in chain]
    for certificate in certificates:
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise MalformedMessageError(
                "a certificate of the chain is out of date, or of the future"
            )
    above = certificates[1:] or certificates
    for certificate, issuer in zip(certificates, above, strict=False):
        try:
            certificate.verify_directly_issued_by(issuer)
        except (InvalidSignature, *_UNREADABLE):
            raise MalformedMessageError("a certificate is not signed by the one above it") from None


def key_of_certificate(der: bytes) -> PublicKey:
    """Raises MalformedMessageError, also for keys of kinds that are not known here."""
    try:
        key = _certificate(der).public_key()
    except _UNREADABLE:
        raise MalformedMessageError("the key of a certificate cannot be read") from None
    return PublicKey.decode(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def _certificate(der: bytes) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(der)
    except _UNREADABLE:
        raise MalformedMessageError("a certificate cannot be read") from None


# Keeping.


def open_identity(folder: Path, now: datetime, kind: KeyKind = KeyKind.ED25519) -> Identity:
    """That of the folder; a new one is made and saved where there is none. Raises ConfigError."""
    if not has_identity(folder):
        save_identity(folder, make_identity(now, kind))
    return load_identity(folder)


def has_identity(folder: Path) -> bool:
    # Keys alone are what a crash leaves of an identity that nobody has seen yet: `save_identity`
    # writes them first.
    return (folder / _CHAIN).exists() or (folder / _CA).exists()


def load_identity(folder: Path) -> Identity:
    """Raises ConfigError, also if others may read the keys."""
    try:
        found = x509.load_pem_x509_certificates(_read(folder / _CHAIN))
    except _UNREADABLE:
        raise ConfigError(f"{folder / _CHAIN} holds no certificates (PEM)") from None
    chain = tuple(certificate.public_bytes(Encoding.DER) for certificate in found)
    if not ROUTER_CHAIN_COUNT_MIN <= len(chain) <= CHAIN_COUNT_MAX:
        raise ConfigError(
            f"{folder / _CHAIN} holds {len(chain)} certificates; "
            "expected are the leaf, the identity and at most two above it"
        )
    key = _fitting(folder / _KEY, chain[0])
    has_ca_key = (folder / _CA_KEY).exists()
    return Identity(chain, key, _fitting(folder / _CA_KEY, chain[1]) if has_ca_key else None)


def save_identity(folder: Path, identity: Identity) -> None:
    """Raises ConfigError. Whatever happens, the folder holds the old identity or this one."""
    try:
        _make_folder(folder)
        before = load_identity(folder) if has_identity(folder) else None
        _save(folder, identity, before)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {_reason(error)}") from error


def _save(folder: Path, identity: Identity, before: Identity | None) -> None:
    if before is None:
        before = identity
    if before.fingerprint != identity.fingerprint:
        secrets = before.pem + before.key.pem + (before.ca_key.pem if before.ca_key else b"")
        _write(folder / _PREVIOUS, secrets, is_secret=True)
    _write_keys(folder / _KEY, identity.key, before.key)
    _write_keys(folder / _CA_KEY, identity.ca_key, before.ca_key)
    # From here on it is the new one.
    _write(folder / _CHAIN, identity.pem)
    _write(folder / _CA, _as_pem(identity.chain[1]))
    _write(folder / _FINGERPRINT, urlsafe_b64encode(identity.fingerprint) + b"\n")
    _write_keys(folder / _KEY, identity.key)
    if before.fingerprint != identity.fingerprint:
        _write_keys(folder / _CA_KEY, identity.ca_key)


def _write_keys(path: Path, *keys: SigningKey | None) -> None:
    pems = dict.fromkeys(key.pem for key in keys if key is not None)
    if pems:
        _write(path, b"".join(pems), is_secret=True)
    else:
        path.unlink(missing_ok=True)


def _fitting(path: Path, certificate: bytes) -> SigningKey:
    """The key in the file that the certificate is of."""
    data = _read(path, is_secret=True)
    try:
        wanted = key_of_certificate(certificate)
    except MalformedMessageError as error:
        raise ConfigError(f"{path} is for a certificate of no use here: {error}") from None
    for pem in _PEM_KEY.findall(data):
        try:
            opened = load_pem_private_key(pem, None)
        except _UNREADABLE:
            raise ConfigError(f"{path} holds a key that cannot be read") from None
        key = SigningKey.of(opened)
        if key.public == wanted:
            return key
    raise ConfigError(f"{path} holds no key of its certificate in {_CHAIN}; restore both together")


def _read(path: Path, *, is_secret: bool = False) -> bytes:
    try:
        with path.open("rb") as file:
            if is_secret:
                _check_secret(path, os.fstat(file.fileno()))
            return file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {_reason(error)}") from error


def _check_secret(path: Path, found: os.stat_result) -> None:
    # A file that root handed to the group of this process is fine: secrets are mounted like that.
    is_handed = found.st_uid == 0 != os.geteuid()
    if found.st_mode & (0o027 if is_handed else 0o077):
        raise ConfigError(f"{path} may be read by others; run: chmod 600 {path}")


def _write(path: Path, data: bytes, *, is_secret: bool = False) -> None:
    new = path.with_name(f".{path.name}.new")
    with suppress(FileNotFoundError):
        new.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(new, flags, 0o600 if is_secret else 0o644), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    _sync_folder(path.parent)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(mode=0o700)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _as_pem(der: bytes) -> bytes:
    return x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM)


def _reason(error: OSError) -> str:
    return os.strerror(error.errno or 0).lower()

"""Keys that tokens are checked with, and the one algorithm that each is for.

A key is a secret, or a public key or certificate as PEM. It is told by what it is, so a public key
never passes for a secret: whoever knows it could sign with it.
"""

from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate

from syncline.errors import ConfigError
from syncline.server.settings import Settings
from syncline.values.limits import KIB

KEY_FILE_BYTES_MAX = 64 * KIB
RSA_BITS_MIN = 2_048
# As many bytes as the hash has, as RFC 7518 demands.
SECRET_BYTES_MIN = {"HS256": 32, "HS384": 48, "HS512": 64}

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey


@dataclass(frozen=True, slots=True)
class TokenKey:
    algorithm: str
    material: bytes | PublicKey = field(repr=False)


def read_keys(settings: Settings) -> tuple[TokenKey, ...]:
    """Every key that is configured. Raises ConfigError."""
    wanted = settings.documents_token_algorithm
    given = settings.documents_token_key
    keys = [make_key(given, wanted, "documents.token_key")] if given else []
    keys += [
        make_key(_read(name), wanted, f"the key in {name}")
        for name in settings.documents_token_key_files
    ]
    return tuple(keys)


def make_key(text: str, wanted: str, where: str) -> TokenKey:
    """The key for `wanted`, or for the algorithm that it is made for if that is `auto`.

    Raises ConfigError.
    """
    text = text.strip()
    if "-----BEGIN" in text:
        algorithm, key = _known(_public_key(text, where), where)
        if wanted not in ("auto", algorithm):
            raise ConfigError(
                f"{where} is for {algorithm} and documents.token_algorithm is {wanted}; "
                "they must agree"
            )
        return TokenKey(algorithm, key)
    algorithm = "HS256" if wanted == "auto" else wanted
    if algorithm not in SECRET_BYTES_MIN:
        raise ConfigError(f"{where} is a secret, and {algorithm} needs a public key as PEM")
    secret = text.encode("utf-8")
    if len(secret) < SECRET_BYTES_MIN[algorithm]:
        raise ConfigError(
            f"{where} is too short; a secret for {algorithm} needs {SECRET_BYTES_MIN[algorithm]} "
            "bytes"
        )
    return TokenKey(algorithm, secret)


def _read(name: str) -> str:
    try:
        with Path(name).open(encoding="utf-8") as file:
            text = file.read(KEY_FILE_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the key file {name} of documents.token_key_files cannot be read"
        ) from error
    if not text.strip() or len(text) > KEY_FILE_BYTES_MAX:
        raise ConfigError(f"the key file {name} is empty or too large to be a key")
    return text


def _public_key(text: str, where: str) -> object:
    if "PRIVATE KEY" in text:
        raise ConfigError(f"{where} is a private key; the router needs only the public one")
    pem = text.encode("utf-8")
    try:
        if "BEGIN CERTIFICATE" in text:
            return load_pem_x509_certificate(pem).public_key()
        return load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{where} is no public key in PEM that can be read") from error


def _known(key: object, where: str) -> tuple[str, PublicKey]:
    match key:
        case RSAPublicKey() if key.key_size >= RSA_BITS_MIN:
            return "RS256", key
        case RSAPublicKey():
            raise ConfigError(f"{where} is too short; an RSA key needs {RSA_BITS_MIN} bits")
        case EllipticCurvePublicKey() if isinstance(key.curve, SECP256R1):
            return "ES256", key
        case Ed25519PublicKey() | Ed448PublicKey():
            return "EdDSA", key
        case _:
            raise ConfigError(f"{where} is of a kind that is not used; take RSA, P-256 or Ed25519")

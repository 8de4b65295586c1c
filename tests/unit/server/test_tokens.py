"""Tokens: signed by a known key with its own algorithm, in time, for the documents they name."""

import json
import time
from base64 import urlsafe_b64encode
from hashlib import sha256
from hmac import digest
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from syncline.errors import ConfigError, NotAuthorizedError
from syncline.server.faces import Upgrade
from syncline.server.sessions import author_of
from syncline.server.settings import Settings
from syncline.server.token_keys import make_key, read_keys
from syncline.server.tokens import (
    EVERYTHING,
    PATTERN_COUNT_MAX,
    TokenRules,
    Tokens,
    offered_token,
    token_subprotocol,
)

NOW = 1_700_000_000
SECRET = "a secret that is long enough for every algorithm, HS512 included"
ALL = [{"pattern": "**", "access": "write"}]

PrivateKey = (
    rsa.RSAPrivateKey
    | ec.EllipticCurvePrivateKey
    | ed25519.Ed25519PrivateKey
    | ed448.Ed448PrivateKey
)

RSA = rsa.generate_private_key(65_537, 2_048)
OTHER_RSA = rsa.generate_private_key(65_537, 2_048)
P256 = ec.generate_private_key(ec.SECP256R1())
ED25519 = ed25519.Ed25519PrivateKey.generate()
ED448 = ed448.Ed448PrivateKey.generate()


def public_pem(key: PrivateKey) -> str:
    found = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return found.decode()


def private_pem(key: PrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def claims(**changes: Any) -> dict[str, Any]:
    made = {"exp": NOW + 60, "sub": "ann", "documents": ALL} | changes
    return {name: value for name, value in made.items() if value is not None}


def signed(key: Any = SECRET, algorithm: str = "HS256", **changes: Any) -> str:
    return jwt.encode(claims(**changes), key, algorithm)


def signed_json(payload: object) -> str:
    """Also what `signed` would refuse to sign."""
    return jwt.api_jws.encode(json.dumps(payload).encode(), SECRET, "HS256")


def start_of(value: object) -> str:
    """Names a case."""
    return ascii(value)[:12]


def tokens(*keys: str, wanted: str = "auto", now: int = NOW, **rules: Any) -> Tokens:
    made = tuple(make_key(key, wanted, "the key") for key in keys or (SECRET,))
    return Tokens(made, TokenRules(**rules), lambda: now * 1_000)


def refusal(judge: Tokens, token: str | None) -> str:
    with pytest.raises(NotAuthorizedError) as caught:
        judge.authorize(token)
    assert not token or token not in str(caught.value)
    return str(caught.value)


# Signatures.


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_secret_checks_what_it_signed(algorithm: str) -> None:
    grant = tokens(wanted=algorithm).authorize(signed(algorithm=algorithm))
    assert (grant.subject, grant.expires_ms) == ("ann", (NOW + 60) * 1_000)
    others = {"HS256", "HS384", "HS512"} - {algorithm}
    for other in others:
        assert "not signed" in refusal(tokens(wanted=algorithm), signed(algorithm=other))


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(RSA, "RS256"), (P256, "ES256"), (ED25519, "EdDSA"), (ED448, "EdDSA")],
)
def test_a_public_key_checks_what_its_other_half_signed(key: PrivateKey, algorithm: str) -> None:
    judge = tokens(public_pem(key))
    assert judge.authorize(signed(key, algorithm)).may_write("any")
    assert "not signed" in refusal(judge, signed())
    assert "not signed" in refusal(tokens(public_pem(OTHER_RSA)), signed(key, algorithm))


def test_the_key_decides_on_the_algorithm_not_the_token() -> None:
    """Signing with a public key as if it were a secret, and not signing at all."""
    pem = public_pem(RSA)
    head = b'{"alg":"HS256","typ":"JWT"}'
    body = json.dumps(claims()).encode()
    unsigned = b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in (head, body))
    for material in (pem.encode(), pem.strip().encode()):
        mark = urlsafe_b64encode(digest(material, unsigned, sha256)).rstrip(b"=")
        assert "not signed" in refusal(tokens(pem), (unsigned + b"." + mark).decode())
    for name in ("none", "None", "NONE", ""):
        head = json.dumps({"alg": name}).encode()
        naked = b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in (head, body)) + b"."
        for judge in (tokens(), tokens(pem)):
            assert "not signed" in refusal(judge, naked.decode())


def test_another_rsa_algorithm_of_the_same_key_is_refused() -> None:
    for algorithm in ("RS384", "RS512", "PS256"):
        assert "not signed" in refusal(tokens(public_pem(RSA)), signed(RSA, algorithm))


def test_any_of_several_keys_will_do() -> None:
    judge = tokens(SECRET, public_pem(RSA), public_pem(ED25519))
    for token in (signed(), signed(RSA, "RS256"), signed(ED25519, "EdDSA")):
        assert judge.authorize(token).subject == "ann"
    assert "EdDSA, HS256, RS256" in refusal(judge, signed(P256, "ES256"))


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        "a.b.c",
        "....",
        "é.é.é",
        "\0",
        signed()[:-2],
        signed() + "x",
        "." + signed(),
        "e30.e30.",
    ],
)
def test_what_is_no_token_is_refused(token: str) -> None:
    assert refusal(tokens(), token)


def test_a_changed_token_is_refused() -> None:
    head, body, mark = signed(documents=[]).split(".")
    other = signed().split(".")[1]
    assert body != other
    assert "not signed" in refusal(tokens(), ".".join((head, other, mark)))


def test_a_token_is_needed_and_has_a_length() -> None:
    assert "a token is needed" in refusal(tokens(), None)
    assert "longer than" in refusal(tokens(), signed(sub="x" * 20_000))


def test_unknown_extensions_are_refused() -> None:
    token = jwt.encode(claims(), SECRET, "HS256", headers={"crit": ["x"], "x": 1})
    assert refusal(tokens(), token)


# Times and parties.


def test_a_token_ends_when_it_says() -> None:
    assert tokens(now=NOW + 59).authorize(signed()).expires_ms == (NOW + 60) * 1_000
    assert "expired" in refusal(tokens(now=NOW + 60), signed())


def test_the_clock_that_counts_is_ours() -> None:
    long_gone = int(time.time()) - 10**6
    grant = tokens(now=long_gone - 1).authorize(signed(exp=long_gone))
    assert grant.expires_ms == long_gone * 1_000


def test_a_token_without_an_end_needs_a_setting() -> None:
    assert "no exp" in refusal(tokens(), signed(exp=None))
    assert tokens(needs_expiry=False).authorize(signed(exp=None)).expires_ms is None
    assert "expired" in refusal(tokens(needs_expiry=False, now=NOW + 60), signed())


def test_a_token_begins_when_it_says_give_or_take_a_clock() -> None:
    assert tokens().authorize(signed(nbf=NOW + 10)).subject == "ann"
    assert "not valid yet" in refusal(tokens(), signed(nbf=NOW + 11))


@pytest.mark.parametrize(
    "value",
    [
        *("tomorrow", True, [], {}, -1, 10**30, 10**400, -(10**400), 1e300),
        *map(float, ("inf", "-inf", "nan")),
    ],
    ids=start_of,
)
@pytest.mark.parametrize("name", ["exp", "nbf"])
def test_times_are_numbers_of_seconds(name: str, value: object) -> None:
    assert name in refusal(tokens(), signed_json(claims(**{name: value})))


@pytest.mark.parametrize(
    "value", [10**400, float("nan"), "\ud800", [[]], {"a": {}}, True], ids=start_of
)
def test_claims_that_nobody_asks_for_may_say_anything(value: object) -> None:
    odd = dict.fromkeys(["iat", "jti", "iss", "aud", "\ud800", "name"], value)
    assert tokens().authorize(signed_json(claims(**odd))).subject == "ann"


def test_issuer_and_audience_are_compared_if_set() -> None:
    judge = tokens(issuer="us", audience="router")
    assert judge.authorize(signed(iss="us", aud="router")).subject == "ann"
    assert judge.authorize(signed(iss="us", aud=["other", "router"])).subject == "ann"
    assert "issuer" in refusal(judge, signed(iss="them", aud="router"))
    assert "issuer" in refusal(judge, signed(aud="router"))
    assert "audience" in refusal(judge, signed(iss="us", aud="other"))
    assert "audience" in refusal(judge, signed(iss="us"))
    unfit: list[object] = [10**400, float("nan"), "\ud800", [], {}, [["router"]], True, None]
    for odd in unfit:
        assert "issuer" in refusal(judge, signed_json(claims(aud="router") | {"iss": odd}))
        assert "audience" in refusal(judge, signed_json(claims(iss="us") | {"aud": odd}))
    assert tokens().authorize(signed(iss="them", aud="other")).subject == "ann"


@pytest.mark.parametrize(
    "subject",
    ["", "x" * 257, "a\ud800", "\udc00", 7, 10**400, float("nan"), True, [], {}],
    ids=start_of,
)
def test_a_subject_is_a_short_text(subject: object) -> None:
    assert "sub" in refusal(tokens(), signed_json(claims(sub=subject)))


@pytest.mark.parametrize("subject", ["x" * 256, "\0", "\U0001f600", "\uffff"], ids=start_of)
def test_every_subject_that_is_let_in_gives_a_name_to_write_under(subject: str) -> None:
    grant = tokens().authorize(signed_json(claims(sub=subject)))
    assert grant.subject == subject
    assert author_of("me", grant.subject).startswith("me~")


def test_a_subject_may_be_missing() -> None:
    assert tokens().authorize(signed(sub=None)).subject is None


# What it allows.


def test_writing_includes_reading_and_nothing_else_is_allowed() -> None:
    grant = tokens().authorize(
        signed(
            documents=[
                {"pattern": "team/*", "access": "read"},
                {"pattern": "team/mine", "access": "write"},
                {"pattern": "home/**", "access": "write"},
            ]
        )
    )
    expected = {
        "team/a": (True, False),
        "team/mine": (True, True),
        "team/mine/x": (False, False),
        "home/a/b": (True, True),
        "other": (False, False),
        "": (False, False),
    }
    for _ in range(2):
        found = {name: (grant.may_read(name), grant.may_write(name)) for name in expected}
        assert found == expected


def test_a_token_without_documents_allows_none() -> None:
    grant = tokens().authorize(signed(documents=None))
    assert not grant.may_read("any")
    assert not grant.may_write("any")


@pytest.mark.parametrize(
    "documents",
    [
        "**",
        {"pattern": "**", "access": "write"},
        [None],
        ["**"],
        [{"pattern": "**"}],
        [{"pattern": "**", "access": "admin"}],
        [{"pattern": "**", "access": ["write"]}],
        [{"pattern": 7, "access": "read"}],
        [{"pattern": "", "access": "read"}],
        [{"pattern": "x" * 401, "access": "read"}],
        [{"pattern": "a\ud800", "access": "read"}],
        [{"pattern": "**", "access": "\ud800"}],
        [{"pattern": {"pattern": "**"}, "access": "read"}],
        [[{"pattern": "**", "access": "read"}]],
        10**400,
        float("nan"),
        [float("nan")],
        [{"access": "read"}],
        [{"pattern": "a", "access": "read"}] * (PATTERN_COUNT_MAX + 1),
    ],
)
def test_rules_that_are_not_understood_are_refused_as_a_whole(documents: object) -> None:
    assert refusal(tokens(), signed_json(claims(documents=documents)))


def test_what_was_decided_is_kept_within_bounds() -> None:
    grant = tokens().authorize(signed())
    for index in range(5_000):
        assert grant.may_write(f"document {index}")
    assert len(grant._decisions) <= 4_096


def test_without_keys_everything_is_allowed() -> None:
    judge = Tokens.from_settings(Settings(), lambda: NOW * 1_000)
    for token in (None, "", "nonsense"):
        grant = judge.authorize(token)
        assert grant is EVERYTHING
        assert (grant.subject, grant.expires_ms) == (None, None)
        assert grant.may_read("any/thing")
        assert grant.may_write("any/thing")


# Keys.


def test_keys_come_from_the_settings_and_from_files(tmp_path: Path) -> None:
    file = tmp_path / "issuer.pem"
    file.write_text(public_pem(RSA))
    settings = Settings(documents_token_key=SECRET, documents_token_key_files=(str(file),))
    assert [key.algorithm for key in read_keys(settings)] == ["HS256", "RS256"]
    judge = Tokens.from_settings(settings, lambda: NOW * 1_000)
    assert judge.authorize(signed()).subject == "ann"
    assert judge.authorize(signed(RSA, "RS256")).subject == "ann"


def test_the_line_end_of_a_file_is_no_part_of_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    judge = Tokens.from_settings(
        Settings(documents_token_key_files=(str(file),)), lambda: NOW * 1_000
    )
    assert judge.authorize(signed()).subject == "ann"


@pytest.mark.parametrize(
    ("key", "wanted", "sentence"),
    [
        ("tiny-secret", "auto", "needs 32 bytes"),
        (SECRET[:40], "HS512", "needs 64 bytes"),
        (SECRET, "RS256", "needs a public key"),
        (SECRET, "EdDSA", "needs a public key"),
        (public_pem(RSA), "HS256", "is for RS256"),
        (public_pem(P256), "EdDSA", "is for ES256"),
        (private_pem(RSA), "auto", "only the public one"),
        (public_pem(rsa.generate_private_key(65_537, 1_024)), "auto", "2048 bits"),
        (public_pem(ec.generate_private_key(ec.SECP384R1())), "auto", "not used"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "auto", "can be read"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "auto", "can be read"),
    ],
    # Keys are made anew in each process; names of tests must not be.
    ids=range(11),
)
def test_a_key_that_cannot_be_used_is_refused(key: str, wanted: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        make_key(key, wanted, "documents.token_key")
    assert "documents.token_key" in str(caught.value)
    assert key not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe", b"x" * 70_000])
def test_a_key_file_that_cannot_be_used_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=str(file)):
        read_keys(Settings(documents_token_key_files=(str(file),)))


def test_keys_are_not_printed() -> None:
    key = make_key(SECRET, "auto", "the key")
    assert SECRET not in repr(key)
    assert SECRET not in repr(Settings(documents_token_key=SECRET))


# Where a token may stand.


def test_a_token_is_found_wherever_a_client_can_put_it() -> None:
    token = signed()
    plain = ("actioncable-v1-json", "syncline.v1.json")
    for upgrade in (
        Upgrade("/sync", headers={"authorization": f"Bearer {token}"}),
        Upgrade("/sync", headers={"authorization": f"bearer  {token} "}),
        Upgrade("/sync", query={"token": token}),
        Upgrade("/sync", subprotocols=(*plain, f"syncline.token.{token}")),
        Upgrade("/cable", subprotocols=(*plain, token)),
        Upgrade("/yjs/plan", subprotocols=(f"syncline.token.{token}",)),
    ):
        assert offered_token(upgrade) == token
        assert token not in repr(upgrade)
    for upgrade in (
        Upgrade("/sync"),
        Upgrade("/sync", query={"token": ""}),
        Upgrade("/sync", headers={"authorization": f"Basic {token}"}),
        Upgrade("/sync", subprotocols=plain),
        Upgrade("/sync", subprotocols=("a.b.c", "..", "é")),
    ):
        assert offered_token(upgrade) is None


def test_the_subprotocol_with_the_token_is_found_even_if_another_token_counts() -> None:
    token = signed()
    for name in (f"syncline.token.{token}", token):
        upgrade = Upgrade("/yjs/plan", query={"token": "first"}, subprotocols=("other", name))
        assert token_subprotocol(upgrade) == name
    assert token_subprotocol(Upgrade("/yjs/plan", subprotocols=("other", "a.b.c"))) is None

"""Tokens: who may read and write which documents, and until when.

A token is a JWT. Its claims:

    exp         when it ends, in seconds; needed unless `documents.token_needs_expiry` is off
    nbf         when it begins
    aud, iss    must agree with `documents.token_audience` and `documents.token_issuer`, if set
    sub         whom it was given to
    documents   what it allows: [{"pattern": "team/*", "access": "read" | "write"}, …]

- A key is for one algorithm, decided by what the key is and by the settings. What the token says
  about its algorithm only has to agree; `none` never does.
- Writing includes reading. Patterns are those of `syncline.server.patterns`.
- Without a key everything is allowed; the settings see to it that only this machine can ask then.
- Neither tokens nor keys are part of an error, and none is printed.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import jwt

from syncline.errors import NotAuthorizedError
from syncline.server.faces import Upgrade
from syncline.server.patterns import Pattern
from syncline.server.settings import Settings
from syncline.server.token_keys import TokenKey, read_keys
from syncline.values import limits

TOKEN_SUBPROTOCOL_PREFIX = "syncline.token."

PATTERN_COUNT_MAX = 256
PATTERN_CHARACTERS_MAX = 400
SUBJECT_CHARACTERS_MAX = 256
# Whoever issues tokens may have a clock that is a little ahead.
_EARLY_MS_MAX = 10_000
_DECISION_COUNT_MAX = 4_096
_TIME_SECONDS_MAX = 1 << 43
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Rule:
    pattern: Pattern
    is_write: bool


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token allows."""

    subject: str | None
    expires_ms: int | None
    rules: tuple[Rule, ...]
    # Asked for each mutation, so it is worked out once for each name.
    _decisions: dict[str, tuple[bool, bool]] = field(
        default_factory=dict[str, tuple[bool, bool]], repr=False, compare=False
    )

    def may_read(self, document: str) -> bool:
        return self._decide(document)[0]

    def may_write(self, document: str) -> bool:
        return self._decide(document)[1]

    def _decide(self, document: str) -> tuple[bool, bool]:
        decision = self._decisions.get(document)
        if decision is None:
            fitting = [rule.is_write for rule in self.rules if rule.pattern.matches(document)]
            decision = (bool(fitting), any(fitting))
            if len(self._decisions) >= _DECISION_COUNT_MAX:
                self._decisions.clear()
            self._decisions[document] = decision
        return decision


EVERYTHING = Grant(None, None, (Rule(Pattern("**"), is_write=True),))


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must say besides being signed."""

    audience: str = ""
    issuer: str = ""
    needs_expiry: bool = True


class Tokens:
    """Judges tokens. Without keys it is open: everything is allowed, and tokens are not read."""

    def __init__(
        self, keys: tuple[TokenKey, ...], rules: TokenRules, clock_ms: Callable[[], int]
    ) -> None:
        self._keys = keys
        self._rules = rules
        self._clock_ms = clock_ms

    @classmethod
    def from_settings(cls, settings: Settings, clock_ms: Callable[[], int]) -> "Tokens":
        """Raises ConfigError for keys that cannot be used."""
        rules = TokenRules(
            settings.documents_token_audience,
            settings.documents_token_issuer,
            settings.documents_token_needs_expiry,
        )
        return cls(read_keys(settings), rules, clock_ms)

    def authorize(self, token: str | None) -> Grant:
        """Raises NotAuthorizedError, with what is wrong but never with what it says."""
        if not self._keys:
            return EVERYTHING
        if not token:
            raise NotAuthorizedError("a token is needed; send one with hello or the handshake")
        if len(token) > limits.token_bytes_max:
            raise NotAuthorizedError(f"the token is longer than {limits.token_bytes_max} bytes")
        claims = self._verified(token)
        expires_ms = self._check_times(claims)
        self._check_parties(claims)
        return Grant(_subject(claims), expires_ms, _rules(claims.get("documents", [])))

    def _verified(self, token: str) -> Mapping[str, object]:
        for key in self._keys:
            try:
                # Extensions that a token demands and the library does not know are refused there.
                found = jwt.decode(
                    token, key.material, algorithms=[key.algorithm], options=_ONLY_SIGNATURE
                )
            except (jwt.InvalidTokenError, ValueError):
                continue
            return cast(Mapping[str, object], found)
        algorithms = ", ".join(sorted({key.algorithm for key in self._keys}))
        raise NotAuthorizedError(f"the token is not signed by a known key ({algorithms})")

    def _check_times(self, claims: Mapping[str, object]) -> int | None:
        """When it ends. The clock is ours, not the library's."""
        now_ms = self._clock_ms()
        begins_ms = _time_ms(claims, "nbf")
        if begins_ms is not None and begins_ms > now_ms + _EARLY_MS_MAX:
            raise NotAuthorizedError("the token is not valid yet")
        expires_ms = _time_ms(claims, "exp")
        if expires_ms is None and self._rules.needs_expiry:
            raise NotAuthorizedError("the token has no exp; give it one")
        if expires_ms is not None and expires_ms <= now_ms:
            raise NotAuthorizedError("the token has expired; get a new one")
        return expires_ms

    def _check_parties(self, claims: Mapping[str, object]) -> None:
        if self._rules.issuer and claims.get("iss") != self._rules.issuer:
            raise NotAuthorizedError("the token is of another issuer")
        if self._rules.audience:
            audience = claims.get("aud")
            named = cast(list[object], audience) if isinstance(audience, list) else [audience]
            if self._rules.audience not in named:
                raise NotAuthorizedError("the token is for another audience")


def offered_token(upgrade: Upgrade) -> str | None:
    """The token that a handshake brought: as a header, in the query, or among the subprotocols."""
    kind, _, credentials = upgrade.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    if upgrade.query.get("token"):
        return upgrade.query["token"]
    name = token_subprotocol(upgrade)
    return None if name is None else name.removeprefix(TOKEN_SUBPROTOCOL_PREFIX)


def token_subprotocol(upgrade: Upgrade) -> str | None:
    """The offered subprotocol that carries a token, whether or not that is the one that counts."""
    for name in upgrade.subprotocols:
        if name.startswith(TOKEN_SUBPROTOCOL_PREFIX):
            return name
    # Clients of ActionCable can only add to their list of subprotocols.
    return next(filter(_is_jwt, upgrade.subprotocols), None)


def _is_jwt(text: str) -> bool:
    try:
        jwt.get_unverified_header(text)
    except (jwt.InvalidTokenError, ValueError):
        return False
    return True


# What depends on the clock or the settings is checked above.
_ONLY_SIGNATURE: Any = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}


def _time_ms(claims: Mapping[str, object], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotAuthorizedError(f"{name} of the token must be a number of seconds")
    # Whole numbers may be too large for a float, and what is no number is within no range.
    if not 0 <= value <= _TIME_SECONDS_MAX:
        raise NotAuthorizedError(f"{name} of the token is out of range")
    return int(value * 1_000)


def _subject(claims: Mapping[str, object]) -> str | None:
    subject = claims.get("sub")
    if subject is None:
        return None
    if not isinstance(subject, str) or not _is_text(subject, SUBJECT_CHARACTERS_MAX):
        raise NotAuthorizedError(
            f"sub of the token must be a text of up to {SUBJECT_CHARACTERS_MAX} characters"
        )
    return subject


def _is_text(text: str, characters_max: int) -> bool:
    """JSON can name halves of characters, which are no text and cannot be encoded."""
    return 0 < len(text) <= characters_max and not _HALF_CHARACTER.search(text)


def _rules(claim: object) -> tuple[Rule, ...]:
    """Nothing is read leniently here: a rule that is not understood might have been meant."""
    if not isinstance(claim, list):
        raise NotAuthorizedError("documents of the token must be a list")
    items = cast(list[object], claim)
    if len(items) > PATTERN_COUNT_MAX:
        raise NotAuthorizedError(f"the token has more than {PATTERN_COUNT_MAX} patterns")
    return tuple(_rule(item) for item in items)


def _rule(item: object) -> Rule:
    fields = cast(dict[object, object], item) if isinstance(item, dict) else {}
    pattern, access = fields.get("pattern"), fields.get("access")
    if not isinstance(pattern, str) or not _is_text(pattern, PATTERN_CHARACTERS_MAX):
        raise NotAuthorizedError(
            f"a pattern of the token must be a text of up to {PATTERN_CHARACTERS_MAX} characters"
        )
    if access not in ("read", "write"):
        raise NotAuthorizedError("access in the token must be read or write")
    return Rule(Pattern(pattern), is_write=access == "write")

"""The token of a client, and when to get a fresh one.

A token may be a text or a function that gets one. A function is asked before each connection, and
again before the token expires, if the token says when: only the `exp` of a JWT is read here, the
router is the one to check it.
"""

from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable

import msgspec

TokenSource = str | Callable[[], Awaitable[str]] | None

# Before it expires; for one that lives only a little longer, after half of its life.
RENEW_SECONDS_BEFORE = 30.0
RENEW_SECONDS_MIN = 1.0


class _Claims(msgspec.Struct):
    exp: float | None = None


async def current(source: TokenSource) -> str | None:
    """The token to say hello with."""
    return await source() if callable(source) else source


def renewal_seconds(token: str | None, now_s: float) -> float | None:
    """How long from now to get the next one; None if the token does not say when it expires."""
    expires_s = _expiry(token)
    if expires_s is None:
        return None
    left = expires_s - now_s
    if left <= 0:
        # The router takes it, so it is our clock that is wrong: it says nothing about when.
        return RENEW_SECONDS_BEFORE
    return max(left - RENEW_SECONDS_BEFORE, left / 2, RENEW_SECONDS_MIN)


def _expiry(token: str | None) -> float | None:
    parts = (token or "").split(".")
    if len(parts) != 3:
        return None
    padded = parts[1] + "=" * (-len(parts[1]) % 4)
    try:
        return msgspec.json.decode(urlsafe_b64decode(padded), type=_Claims).exp
    except (ValueError, msgspec.MsgspecError):
        return None

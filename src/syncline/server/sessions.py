"""Who is connected under which client id, and what is kept for those who dropped.

- A client id belongs to one connection at a time: a second one displaces the first, which is most
  often its own ghost on a dead network.
- What a dropped connection leaves behind depends on its policy. `clean`: nothing. `intent`: the
  names of its documents; it is subscribed to them when it is back and gets their states. `resume`:
  its places in the streams as well; it gets only what it missed.

Both are bounded: the oldest are forgotten first, and all after `keep_ms`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from syncline.values import limits

KEPT_COUNT_MAX = 10_000

_HASH_CHARACTERS = 16


class Displaceable(Protocol):
    def displace(self) -> None:
        """Another connection came with the same client id."""
        ...


@dataclass(frozen=True, slots=True)
class _Kept:
    documents: tuple[str, ...]
    until_ms: int


def author_of(client: str, subject: str | None) -> str:
    """The name under which a client's mutations are stored.

    Client ids are seen by everybody who reads a document. With tokens the name also depends on
    whom the token was given to, so that nobody can use up the clocks of somebody else.
    """
    if subject is None:
        return client
    digest = sha256(f"{subject}\0{client}".encode()).hexdigest()[:_HASH_CHARACTERS]
    visible = limits.client_id_characters_max - _HASH_CHARACTERS - 1
    return f"{client[:visible]}~{digest}"


class Sessions:
    """See the module."""

    def __init__(self, clock_ms: Callable[[], int], keep_ms: int) -> None:
        self._clock_ms = clock_ms
        self._keep_ms = keep_ms
        self._connected: dict[str, Displaceable] = {}
        # In the order in which they dropped.
        self._kept: dict[str, _Kept] = {}

    def claim(self, author: str, connection: Displaceable) -> tuple[str, ...]:
        """Take the name over. Return the documents that were kept for it."""
        if (before := self._connected.pop(author, None)) is not None:
            before.displace()
        self._connected[author] = connection
        kept = self._kept.pop(author, None)
        return kept.documents if kept and kept.until_ms >= self._clock_ms() else ()

    def release(self, author: str, connection: Displaceable) -> None:
        if self._connected.get(author) is connection:
            del self._connected[author]

    def keep(self, author: str, documents: tuple[str, ...]) -> None:
        """Remember what a connection that dropped was subscribed to."""
        now_ms = self._clock_ms()
        self._kept.pop(author, None)
        self._kept[author] = _Kept(documents, now_ms + self._keep_ms)
        while self._kept:
            oldest = next(iter(self._kept))
            if len(self._kept) <= KEPT_COUNT_MAX and self._kept[oldest].until_ms >= now_ms:
                break
            del self._kept[oldest]

    def __len__(self) -> int:
        return len(self._connected)

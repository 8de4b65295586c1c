"""Awareness of Yjs: who is present in a document. Relayed, never stored.

    update   varUint n, then n times: varUint client, varUint clock, varString JSON (`null`: gone)

Invariants of `Awareness`:
- A client's clock never goes back; what is not newer than what is known is not relayed.
- A client that is present belongs to the connection whose entry was taken last, and goes with it.
- Clients, their states and the memory of those that left are bounded.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.values import limits
from syncline.wire.lib0 import Reader, var_bytes, var_uint

# A client renews its state every 15 s; one that was not for so long is gone.
OUTDATED_MS = 30_000

_json = msgspec.json.Decoder()


class Entry(Struct, frozen=True, gc=False):
    """What is said of one client: its state as JSON text, or None if it is gone."""

    client: int
    clock: int
    state: bytes | None


def decode(update: bytes) -> list[Entry]:
    """Raises MalformedMessageError or LimitExceededError for what is no awareness update."""
    reader = Reader(update)
    count = reader.count(each_bytes_min=3)
    if count > limits.awareness_client_count_max:
        raise _too_many(count)
    entries = [
        Entry(reader.var_uint(), reader.var_uint(), _read_state(reader)) for _ in range(count)
    ]
    reader.finish()
    if len({entry.client for entry in entries}) < count:
        raise MalformedMessageError("an awareness update has each client once")
    return entries


def encode(entries: Iterable[Entry]) -> bytes:
    """What `decode` reads."""
    parts = [b""]
    for entry in entries:
        parts += (
            var_uint(entry.client),
            var_uint(entry.clock),
            var_bytes(b"null" if entry.state is None else entry.state),
        )
    parts[0] = var_uint(len(parts) // 3)
    return b"".join(parts)


def _read_state(reader: Reader) -> bytes | None:
    text = reader.var_bytes()
    if len(text) > limits.awareness_state_bytes_max:
        raise LimitExceededError(
            "the size of a state in bytes", len(text), limits.awareness_state_bytes_max
        )
    try:
        # Other clients parse it unguarded, so it must be JSON.
        value = _json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedMessageError("the state of an awareness update is no JSON") from None
    return None if value is None else text


class _Present(Struct, frozen=True, gc=False):
    clock: int
    state: bytes
    connection: int
    seen_ms: int


class Awareness:
    """Everybody who is present in one document, and through which connection."""

    def __init__(
        self,
        client_count_max: int = limits.awareness_client_count_max,
        bytes_max: int = limits.awareness_bytes_max,
    ) -> None:
        self._client_count_max = client_count_max
        self._bytes_max = bytes_max
        self._present: dict[int, _Present] = {}
        self._state_bytes = 0
        # The last clocks of those who left, oldest first: without them a late entry would bring
        # one back.
        self._gone: dict[int, int] = {}

    def apply(self, connection: int, entries: Iterable[Entry], now_ms: int) -> list[Entry]:
        """Take what is news and return it, to be relayed. A client has at most one entry.

        Raises LimitExceededError if too many or too much would be present; then nothing is taken.
        """
        news = [entry for entry in entries if self._is_news(entry)]
        self._check_room(news)
        for entry in news:
            self._forget(entry.client)
            if entry.state is None:
                self._remember_gone(entry)
            else:
                self._present[entry.client] = _Present(entry.clock, entry.state, connection, now_ms)
                self._state_bytes += len(entry.state)
        return news

    def everybody(self) -> list[Entry]:
        """What a newcomer is told."""
        return [
            Entry(client, present.clock, present.state) for client, present in self._present.items()
        ]

    def departed(self) -> list[Entry]:
        """Those who left, as far as they are remembered."""
        return [Entry(client, clock, None) for client, clock in self._gone.items()]

    def hidden(self, entries: Iterable[Entry]) -> list[Entry]:
        """Those who say they are here, yet left with that clock or a later one: as gone."""
        return [
            Entry(entry.client, gone_clock, None)
            for entry in entries
            if entry.state is not None
            and (gone_clock := self._gone.get(entry.client, 0)) >= entry.clock > 0
        ]

    def disconnect(self, connection: int) -> list[Entry]:
        """Remove everyone who came through it; returns what the others are told."""
        return self._leave(
            [
                client
                for client, present in self._present.items()
                if present.connection == connection
            ]
        )

    def drop_outdated(self, now_ms: int) -> list[Entry]:
        """Remove everyone who has not renewed; returns what the others are told."""
        return self._leave(
            [
                client
                for client, present in self._present.items()
                if now_ms - present.seen_ms >= OUTDATED_MS
            ]
        )

    def _is_news(self, entry: Entry) -> bool:
        present = self._present.get(entry.client)
        if present is None:
            # 0 is no clock of a client that has said anything: the libraries skip it as well.
            return entry.clock > self._gone.get(entry.client, 0)
        return entry.clock > present.clock or (entry.clock == present.clock and entry.state is None)

    def _check_room(self, news: list[Entry]) -> None:
        clients, state_bytes = len(self._present), self._state_bytes
        for entry in news:
            before = self._present.get(entry.client)
            clients += (entry.state is not None) - (before is not None)
            state_bytes += len(entry.state or b"") - len(before.state if before else b"")
        if clients > self._client_count_max:
            raise _too_many(clients, self._client_count_max)
        if state_bytes > self._bytes_max:
            raise LimitExceededError("the size of all states", state_bytes, self._bytes_max)

    def _leave(self, clients: list[int]) -> list[Entry]:
        leaving = [Entry(client, self._present[client].clock, None) for client in clients]
        for entry in leaving:
            self._forget(entry.client)
            self._remember_gone(entry)
        return leaving

    def _forget(self, client: int) -> None:
        self._gone.pop(client, None)
        present = self._present.pop(client, None)
        if present is not None:
            self._state_bytes -= len(present.state)

    def _remember_gone(self, entry: Entry) -> None:
        self._gone[entry.client] = entry.clock
        if len(self._gone) > self._client_count_max:
            del self._gone[next(iter(self._gone))]


def _too_many(count: int, count_max: int = limits.awareness_client_count_max) -> LimitExceededError:
    return LimitExceededError("the number of clients that are present", count, count_max)

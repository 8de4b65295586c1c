"""What waits for all readers of WebSockets together, and who goes when it is too much."""

from typing import Protocol


class Waits(Protocol):
    @property
    def waiting_bytes(self) -> int: ...

    def abort(self) -> None: ...


class AllWaiting:
    """Told when a write leaves something waiting, not when that is taken: looked at again before
    anybody is cut off, who has most waiting first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._seen: dict[Waits, int] = {}
        self._seen_bytes = 0

    def saw(self, reader: Waits, waiting_bytes: int) -> None:
        self._seen_bytes += waiting_bytes - self._seen.get(reader, 0)
        self._seen[reader] = waiting_bytes
        if self._seen_bytes > self._bytes_max:
            self._look_again()
            self._cut_off()

    def forget(self, reader: Waits) -> None:
        self._seen_bytes -= self._seen.pop(reader, 0)

    def _look_again(self) -> None:
        found = {reader: reader.waiting_bytes for reader in self._seen}
        self._seen = {reader: waiting for reader, waiting in found.items() if waiting}
        self._seen_bytes = sum(self._seen.values())

    def _cut_off(self) -> None:
        while self._seen_bytes > self._bytes_max:
            slowest = max(self._seen, key=self._seen.__getitem__)
            self.forget(slowest)
            # A goodbye would wait behind all that it does not read.
            slowest.abort()

"""How fast one connection may send: a bucket of messages and one of bytes that fill with time."""


class Allowance:
    """Holds one second's worth at most. It may be overdrawn; then it says how long to wait."""

    __slots__ = ("_at", "_bytes", "_bytes_per_second", "_messages", "_messages_per_second")

    def __init__(self, messages_per_second: int, bytes_per_second: int, now: float) -> None:
        self._messages_per_second = messages_per_second
        self._bytes_per_second = bytes_per_second
        self._messages: float = messages_per_second
        self._bytes: float = bytes_per_second
        self._at = now

    def spend(self, message_count: int, byte_count: int, now: float) -> float:
        """Seconds until nothing is owed any more; 0 while there is something left."""
        passed = now - self._at
        self._at = now
        self._messages = (
            min(self._messages + passed * self._messages_per_second, self._messages_per_second)
            - message_count
        )
        self._bytes = (
            min(self._bytes + passed * self._bytes_per_second, self._bytes_per_second) - byte_count
        )
        if self._messages >= 0 and self._bytes >= 0:
            return 0.0
        return max(
            -self._messages / self._messages_per_second, -self._bytes / self._bytes_per_second
        )

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
        # Comparisons rather than `min`: this runs for every read (bench: documents).
        messages = self._messages + passed * self._messages_per_second
        if messages > self._messages_per_second:
            messages = self._messages_per_second
        self._messages = messages = messages - message_count
        size = self._bytes + passed * self._bytes_per_second
        if size > self._bytes_per_second:
            size = self._bytes_per_second
        self._bytes = size = size - byte_count
        if messages >= 0 and size >= 0:
            return 0.0
        return max(-messages / self._messages_per_second, -size / self._bytes_per_second)

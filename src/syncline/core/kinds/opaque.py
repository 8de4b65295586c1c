"""Documents of opaque bytes: the router cannot fold them, so their state is all their updates."""

import msgspec

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode

# MessagePack puts at most this much in front of each update, and once in front of all.
_HEAD_BYTES = 5


class BytesFolding:
    """State: MessagePack array of `bin`, one for each update."""

    def __init__(self, state: bytes = b"") -> None:
        self.updates: list[bytes] = _decode(state) if state else []
        self._byte_count = _HEAD_BYTES + sum(_HEAD_BYTES + len(each) for each in self.updates)

    def check(self) -> None:
        """Making it has read the whole state."""

    def prepare(self, body: bytes, value: object = None) -> bytes:
        return body

    def admit(self, body: bytes) -> None:
        pass

    def apply(self, prepared: bytes) -> None:
        self.updates.append(prepared)
        self._byte_count += _HEAD_BYTES + len(prepared)

    def state(self) -> bytes:
        return _encode(self.updates)

    def shown(self) -> bytes:
        return self.state()

    @property
    def byte_count(self) -> int:
        return self._byte_count

    @property
    def is_folded(self) -> bool:
        return True

    @property
    def unfoldable_count(self) -> int:
        return 0

    def rest(self) -> None:
        """The updates are all there is."""

"""JSON documents: each update is a merge patch (RFC 7396)."""

from typing import Any, cast

import msgspec

from syncline.core import merge_patch
from syncline.errors import InvalidMutationError, LimitExceededError

_decode = msgspec.json.Decoder().decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


class JsonFolding:
    """A JSON object, changed in place: nobody else holds it. A new document is empty."""

    def __init__(self, state: bytes = b"") -> None:
        self.value: dict[str, Any] = _decode_object(state) if state else {}
        # Of the patches on top of the last encoded state: what they may have added to it.
        self._encoded_bytes = len(state) or 2
        self._patched_bytes = 0

    def check(self) -> None:
        """Making it has read the whole state."""

    def prepare(self, body: bytes, value: object = None) -> Any:
        patch = value
        if patch is None:
            try:
                patch = _decode(body)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
                raise InvalidMutationError("a mutation of a JSON document is valid JSON") from error
        if not isinstance(patch, dict):
            raise InvalidMutationError(
                "a mutation of a JSON document is an object, a merge patch by RFC 7396"
            )
        if body.count(b"{") + body.count(b"[") > merge_patch.DEPTH_MAX:
            _check_depth(cast("dict[str, Any]", patch))
        return cast("dict[str, Any]", patch), len(body)

    def admit(self, body: bytes) -> None:
        pass

    def apply(self, prepared: Any) -> None:
        patch, byte_count = prepared
        _merge_into(self.value, patch)
        self._patched_bytes += byte_count

    def state(self) -> bytes:
        encoded = _encode(self.value)
        self._encoded_bytes, self._patched_bytes = len(encoded), 0
        return encoded

    def shown(self) -> bytes:
        return self.state()

    @property
    def byte_count(self) -> int:
        return self._encoded_bytes + self._patched_bytes

    @property
    def is_folded(self) -> bool:
        return True

    @property
    def unfoldable_count(self) -> int:
        return 0

    def rest(self) -> None:
        """The value is all there is."""


def _check_depth(patch: dict[str, Any]) -> None:
    try:
        merge_patch.apply({}, patch)
    except LimitExceededError as error:
        raise InvalidMutationError(str(error)) from error


def _merge_into(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """`merge_patch.apply`, in place: a patch of one node does not copy a diagram of thousands."""
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            if not isinstance(target.get(name), dict):
                target[name] = {}
            _merge_into(target[name], cast("dict[str, Any]", value))
        else:
            target[name] = value

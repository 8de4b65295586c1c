"""Cursors never go to runs: they are written to the log anew before their segment is let go of."""

from collections.abc import Mapping
from typing import Final

from syncline.errors import LimitExceededError, StorageError
from syncline.storage.log.format import (
    RECORD_HEADER_BYTES,
    RecordKind,
    cursors_bytes,
    encode_cursors,
)
from syncline.storage.log.staging import Stager
from syncline.storage.log.streams import LENGTH_BITS, OpenStream
from syncline.values import limits

_CURSOR_BYTES_MAX: Final = cursors_bytes([bytes(limits.cursor_name_bytes_max)])


def check_room_for_cursor(cursors: Mapping[bytes, int], name: bytes, segment_bytes: int) -> None:
    """Whether a stream with these cursors may have one more. Raises LimitExceededError.

    All of them are written anew in one record: as an entry, it takes no more than half a segment.
    Upkeep could not let go of any segment if it did not fit.
    """
    count = len(cursors) + 1
    if count > limits.cursors_per_stream_max:
        raise LimitExceededError("cursors", count, limits.cursors_per_stream_max)
    bytes_max = segment_bytes // 2
    if count * _CURSOR_BYTES_MAX <= bytes_max:
        # However long their names are: no need to add them up for each new one.
        return
    size = cursors_bytes([*cursors, name])
    if size > bytes_max:
        raise LimitExceededError("cursor bytes", size, bytes_max)


def have_cursors_moved(
    with_cursors: dict[OpenStream, None], stager: Stager, durable_end: int, seal_to: int
) -> bool:
    """Whether no cursor needs a segment below `seal_to`, which is to be sealed.

    Those that do are staged, all of a stream together: the answer is yes once that is durable.
    Streams that have no cursors any more leave `with_cursors`.
    """
    have_moved = True
    for opened in list(with_cursors):
        if not opened.cursors and opened.cursor_position < durable_end:
            del with_cursors[opened]
        elif opened.cursors and opened.cursor_position < seal_to:
            data = encode_cursors(opened.cursors)
            try:
                batch = stager.room(RECORD_HEADER_BYTES + len(data))
            except StorageError:
                return False
            place = batch.add(opened, RecordKind.CURSORS, stager.time_ms, data)
            opened.cursor_position = place >> LENGTH_BITS
        have_moved = have_moved and opened.cursor_position < durable_end
    return have_moved

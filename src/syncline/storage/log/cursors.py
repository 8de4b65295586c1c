"""Cursors never go to runs: they are written to the log anew before their segment is let go of."""

from syncline.errors import StorageError
from syncline.storage.log.format import RECORD_HEADER_BYTES, RecordKind, encode_cursors
from syncline.storage.log.staging import Stager
from syncline.storage.log.streams import LENGTH_BITS, OpenStream


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

"""Where the reader of a queue stands in its files, once it has moved. Pure."""

from dataclasses import replace

from syncline.storage.journal.format import QueueState
from syncline.storage.journal.index import EntryIndex
from syncline.storage.journal.layout import cursor_name, message_name, snapshot_name


def advanced(state: QueueState, first: int, index: EntryIndex) -> QueueState:
    """The state once everything below `first` was read.

    A read file that is used up is left for the write file, only if that is another one. The index
    still has the entry before `first`, if there is one.
    """
    read_file, read_first, read_byte = state.read_file, state.read_first, state.read_byte
    if first >= state.write_first and not state.has_one_file:
        read_file, read_first, read_byte = state.write_file, state.write_first, 0
    if first == state.next:
        read_byte = state.write_byte
    elif (place := index.at(first)) is not None:
        read_byte = place.offset
    elif (before := index.before(first)) is not None and before.seq >= read_first:
        # The entry itself is lost; what is left of it lies behind the one before.
        read_byte = before.end
    if read_file == state.write_file:
        read_byte = min(read_byte, state.write_byte)
    return replace(
        state, read_file=read_file, read_first=read_first, read_byte=read_byte, first=first
    )


def named_files(state: QueueState) -> set[str]:
    """The names of the files that the state speaks of; a message file may not exist yet."""
    names = {message_name(state.read_file), message_name(state.write_file)}
    if state.snapshot_file is not None:
        names.add(snapshot_name(state.snapshot_file))
    if state.cursor_file is not None:
        names.add(cursor_name(state.cursor_file))
    return names

"""Opening one queue: what its files say together.

- The last whole line of queue.log is the base. What the files hold beyond it counts too: a message
  is there once it is whole, whether or not its state line was written.
- Bytes that the base does not cover and that are no whole next message are a torn tail: cut, the
  cut synced, and counted. They were never acknowledged.
- Bytes that the base covers and that do not pass are damage: they cost their messages, which are
  reported with their sequences, and stay unread until the reader passes them.
- What follows a quota marker says that everything up to it had been read by then.
- A read file that is used up while another write file exists is left for that one.
- Files that nobody names are removed. If the state is in doubt because a later line is unreadable,
  a message file that goes on where the named ones end is taken over instead.
- The folder is read and tidied here; queue.log itself is written with the next batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from syncline.storage.base import Damage, EntryKind, StreamKind
from syncline.storage.files import File, Files
from syncline.storage.journal.cursors import CursorFile, read_cursors
from syncline.storage.journal.format import Flaw, QueueState, parse_snapshot
from syncline.storage.journal.handles import HandlePool
from syncline.storage.journal.index import EntryIndex
from syncline.storage.journal.layout import (
    STATE_DRAFT_NAME,
    STATE_NAME,
    backup_time_ms,
    is_named_by_state,
    is_ours,
    snapshot_file_id,
    snapshot_name,
)
from syncline.storage.journal.positions import advanced, named_files
from syncline.storage.journal.reading import Findings, MessageReader
from syncline.storage.journal.scan import read_around
from syncline.storage.journal.state import STATE_TAIL_BYTES, StateLog, read_state_log
from syncline.values import limits
from syncline.values.ids import StreamId

SNAPSHOT_FILE_BYTES_MAX: Final = limits.snapshot_bytes_max + 1024


@dataclass(frozen=True, slots=True)
class Recovered:
    """A queue as its folder has it."""

    state: QueueState
    index: EntryIndex
    cursors: CursorFile
    log: StateLog
    # The write file ends within a line that must stay: the next one starts behind a newline.
    needs_newline: bool
    # Files that the line on the disk names and `state` does not: gone with the next line.
    stale_names: tuple[str, ...]
    damage: tuple[Damage, ...]
    torn_tails: tuple[tuple[str, int], ...]


def recover_queue(
    stream: StreamId,
    folder: str,
    files: Files,
    pool: HandlePool,
    new_file_id: Callable[[], str],
    *,
    is_suspect: bool,
) -> Recovered | None:
    """Read a queue's folder; None if there is none.

    `is_suspect`: the process before this one may have died between a write and its sync, so what
    the system shows need not be on the device.
    """
    try:
        names = files.list(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if is_suspect:
        settle(folder, names, files, pool)
    findings = Findings(stream, folder)
    log = _read_log(stream, folder, names, pool, findings)
    base = log.state or _base_without_log(stream, folder, names, pool, new_file_id)
    reader = MessageReader(stream, folder, names, pool, findings)
    state = _read_messages(reader, base, log.is_certain, new_file_id)
    state = _with_snapshot(state, reader, log.is_certain)
    cursors = read_cursors(
        stream, folder, names, state, pool, is_certain=log.is_certain, report=findings.report
    )
    state = replace(state, cursor_file=cursors.file_id, cursor_byte=cursors.byte_count)
    on_disk = named_files(base) if log.state else set(filter(is_named_by_state, names))
    _remove_unnamed(folder, names, named_files(state) | on_disk, files, pool)
    return Recovered(
        state,
        reader.index,
        cursors,
        log,
        reader.needs_newline,
        tuple(sorted((on_disk - named_files(state)).intersection(names))),
        tuple(findings.damage),
        tuple(findings.torn_tails),
    )


def settle(folder: str, names: list[str], files: Files, pool: HandlePool) -> None:
    """Make sure that what can be read here is on the device."""
    for name in names:
        if is_ours(name):
            with pool.use(f"{folder}/{name}") as file:
                settle_file(file)
    files.sync_folder(folder)


def settle_file(file: File) -> None:
    # After a failed sync the system may show bytes that the device never got.
    file.forget_cached(0, file.size())
    file.sync()


# The base.


def _read_log(
    stream: StreamId, folder: str, names: list[str], pool: HandlePool, findings: Findings
) -> StateLog:
    if STATE_NAME not in names:
        findings.report(STATE_NAME, 0, "the file is missing")
        return StateLog(None, 0, 0, 0)
    log = _state_log(stream, f"{folder}/{STATE_NAME}", pool)
    for offset in log.flawed_offsets:
        findings.report(STATE_NAME, offset, "a state line is unreadable; a later one holds")
    if log.state is None:
        findings.report(STATE_NAME, 0, "no state line can be read")
    elif not log.is_certain:
        findings.torn_tails.append((f"{folder}/{STATE_NAME}", log.state_end))
    return log


def _base_without_log(
    stream: StreamId,
    folder: str,
    names: list[str],
    pool: HandlePool,
    new_file_id: Callable[[], str],
) -> QueueState:
    """The state of the newest readable backup, or of a queue that starts with what is found."""
    backups = [(backup_time_ms(name) or 0, name) for name in names if backup_time_ms(name)]
    for _, name in sorted(backups, reverse=True):
        log = _state_log(stream, f"{folder}/{name}", pool)
        if log.state is not None:
            return log.state
    is_document = any(snapshot_file_id(name) for name in names)
    file_id = new_file_id()
    return QueueState(
        *(file_id, 1, 0),
        *(file_id, 1, 0),
        first=1,
        next=1,
        kind=StreamKind.DOCUMENT if is_document else StreamKind.QUEUE,
        quota=0 if is_document else limits.queue_quota_default,
        is_blocked=False,
    )


def _state_log(stream: StreamId, path: str, pool: HandlePool) -> StateLog:
    with pool.use(path) as file:
        start = max(0, file.size() - STATE_TAIL_BYTES)
        return read_state_log(stream, read_around(file, start, STATE_TAIL_BYTES), start)


# The message files.


def _read_messages(
    reader: MessageReader, base: QueueState, is_certain: bool, new_file_id: Callable[[], str]
) -> QueueState:
    state = _read_named_files(reader, base, is_certain)
    if not is_certain:
        state = _take_over(reader, state)
    if not reader.has(state.write_file) and state.next > state.write_first:
        # Gone with what it held. Its name stays with what is lost, until that was passed.
        state = replace(state, write_file=new_file_id(), write_first=state.next, write_byte=0)
    first = _first_implied(reader.index, state.first)
    last = reader.index.last
    is_blocked = (
        last is not None
        and last.kind is EntryKind.QUOTA_MARKER
        and first <= last.seq == state.next - 1
    )
    state = replace(advanced(state, first, reader.index), is_blocked=is_blocked)
    reader.index.truncate_before(first)
    return state


def _read_named_files(reader: MessageReader, base: QueueState, is_certain: bool) -> QueueState:
    state = base
    start, expected = base.read_byte, base.first
    if not base.has_one_file:
        if is_certain or reader.has(base.read_file):
            reader.read_sealed(base.read_file, base.read_byte, base.first, base.write_first)
        else:
            # A line that can no longer be read has let go of it.
            state = replace(
                state,
                read_file=base.write_file,
                read_first=base.write_first,
                read_byte=0,
                first=base.write_first,
            )
        start, expected = 0, base.write_first
    next_seq, end = reader.read_open(base.write_file, start, expected, base.next, base.write_byte)
    return replace(state, next=next_seq, write_byte=end)


def _take_over(reader: MessageReader, state: QueueState) -> QueueState:
    """Go on in message files that the unreadable line may have named: two at most."""
    for _ in range(2):
        is_lost = not reader.has(state.write_file)
        found = reader.continuation(state, is_lost)
        if found is None or not (state.has_one_file or is_lost):
            break
        file_id, first = found
        if is_lost:
            # So is every line that spoke of what came before.
            state = replace(state, read_file=file_id, read_first=first, read_byte=0, first=first)
        next_seq, end = reader.read_open(file_id, 0, first, first, 0)
        state = replace(state, write_file=file_id, write_first=first, write_byte=end, next=next_seq)
    return state


def _first_implied(index: EntryIndex, first: int) -> int:
    """The lowest sequence that can be wanted: nothing follows a marker before all was read."""
    after_marker = 0
    for place in index:
        first = max(first, after_marker)
        if place.kind is EntryKind.QUOTA_MARKER:
            after_marker = place.seq + 1
    return first


# Snapshots and what is left over.


def _with_snapshot(state: QueueState, reader: MessageReader, is_certain: bool) -> QueueState:
    if state.snapshot_file is not None and snapshot_name(state.snapshot_file) in reader.names:
        return state
    found = None if is_certain else _newest_snapshot(reader, state.next)
    if found is not None:
        return replace(state, snapshot_file=found[1], snapshot_seq=found[0])
    if state.snapshot_file is not None:
        reader.findings.report(snapshot_name(state.snapshot_file), 0, "the file is missing")
    return replace(state, snapshot_file=None, snapshot_seq=0)


def _newest_snapshot(reader: MessageReader, next_seq: int) -> tuple[int, str] | None:
    """The whole snapshot that covers most, and its file."""
    found: list[tuple[int, str]] = []
    for name in reader.names:
        file_id = snapshot_file_id(name)
        if file_id is not None:
            with reader.pool.use(f"{reader.folder}/{name}") as file:
                snapshot = parse_snapshot(
                    reader.stream, read_around(file, 0, SNAPSHOT_FILE_BYTES_MAX)
                )
            if not isinstance(snapshot, Flaw) and snapshot.up_to_seq < next_seq:
                found.append((snapshot.up_to_seq, file_id))
    return max(found, default=None)


def _remove_unnamed(
    folder: str, names: list[str], named: set[str], files: Files, pool: HandlePool
) -> None:
    unnamed = [
        name
        for name in names
        if name == STATE_DRAFT_NAME or (is_named_by_state(name) and name not in named)
    ]
    for name in unnamed:
        pool.forget_file(f"{folder}/{name}")
        files.remove(f"{folder}/{name}")
    if unnamed:
        # It must not come back after something else was written in its place.
        files.sync_folder(folder)

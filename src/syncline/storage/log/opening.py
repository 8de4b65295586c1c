"""Opens a data folder: makes a new one, or brings an old one back as it was last made durable.

Restart = manifest + mapped table + replay of the live segments: the cost depends on the tail of the
log, not on how many streams or messages there are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from syncline.errors import ConfigError, CorruptionError
from syncline.storage.base import Damage
from syncline.storage.files import Files, Lock
from syncline.storage.folder import claim_folder
from syncline.storage.log.format import BLOCK_BYTES, FORMAT_VERSION, TABLE_KEY_BYTES, store_tag
from syncline.storage.log.manifest import Manifest, ManifestState
from syncline.storage.log.preparing import write_table
from syncline.storage.log.recovery import Replay, replay_log
from syncline.storage.log.runset import RunSet
from syncline.storage.log.scan import Chain, next_batch
from syncline.storage.log.segments import Segments
from syncline.storage.log.table import CAPACITY_MIN, Table
from syncline.storage.options import StoreOptions
from syncline.values import limits

_FIRST_SEGMENT: Final = 1
FOLDERS: Final = ("wal", "table", "runs")


@dataclass(slots=True)
class OpenedLog:
    """The parts of a store that was opened."""

    files: Files
    folder: str
    lock: Lock
    store_id: bytes
    manifest: Manifest
    segments: Segments
    table: Table
    runs: RunSet
    replay: Replay
    now_ms: int

    def close(self) -> None:
        """Let go of the folder. What is staged is not written."""
        self.runs.close()
        self.table.close()
        self.segments.close()
        self.manifest.close()
        self.lock.release()


def table_path(folder: str, generation: int) -> str:
    return f"{folder}/table/queues.{generation}.tab"


def open_log(
    folder: str,
    files: Files,
    options: StoreOptions,
    now_ms: int,
    random_bytes: Callable[[int], bytes],
    progress: Callable[[int, int], None],
) -> OpenedLog:
    _check_segment_bytes(options.segment_bytes)
    store_id, lock = claim_folder(folder, files, "log", FORMAT_VERSION, random_bytes)
    try:
        manifest = Manifest.open(files, folder)
        if manifest is None:
            manifest = _create(
                folder, files, options, store_tag(store_id), random_bytes(TABLE_KEY_BYTES)
            )
        return _open_parts(folder, files, options, now_ms, lock, store_id, manifest, progress)
    except BaseException:
        lock.release()
        raise


def _check_segment_bytes(segment_bytes: int) -> None:
    if (
        not limits.segment_bytes_min <= segment_bytes <= limits.segment_bytes_max
        or segment_bytes % BLOCK_BYTES
    ):
        raise ConfigError(
            f"a segment has {limits.segment_bytes_min} to {limits.segment_bytes_max} bytes in "
            f"whole blocks of {BLOCK_BYTES}, not {segment_bytes}"
        )


def _create(
    folder: str, files: Files, options: StoreOptions, tag: int, table_key: bytes
) -> Manifest:
    """Everything that the first manifest lists is durable before it is written."""
    segments = Segments(files, f"{folder}/wal", options.segment_bytes, 0, tag)
    first_path = segments.path(_FIRST_SEGMENT)
    if files.exists(first_path):
        file = files.open(first_path, writable=False)
        try:
            data = file.read(0, file.size())
        finally:
            file.close()
        if next_batch(data, 0, _FIRST_SEGMENT * options.segment_bytes, None, tag) is not None:
            raise CorruptionError(f"{folder}/CURRENT", 0, "it is missing, and the log is not")
    for name in FOLDERS:
        files.make_folder(f"{folder}/{name}")
    files.sync_folder(folder)
    write_table(files, table_path(folder, 1), CAPACITY_MIN, 1)
    segments.prepare(first_path)
    state = ManifestState(
        format=FORMAT_VERSION,
        segment_bytes=options.segment_bytes,
        epoch=0,
        oldest_segment=_FIRST_SEGMENT,
        previous_number=0,
        previous_crc=0,
        previous_epoch=0,
        checkpoint=_FIRST_SEGMENT * options.segment_bytes,
        table_key=table_key.hex(),
        table_generations=[1],
        store_tag=tag,
    )
    return Manifest.create(files, folder, state)


def _open_parts(
    folder: str,
    files: Files,
    options: StoreOptions,
    now_ms: int,
    lock: Lock,
    store_id: bytes,
    manifest: Manifest,
    progress: Callable[[int, int], None],
) -> OpenedLog:
    state = manifest.state
    tag = store_tag(store_id)
    if state.store_tag != tag:
        raise CorruptionError(f"{folder}/FORMAT", 0, "it has the id of another store")
    _remove_unlisted(folder, files, state)
    runs = RunSet(files, f"{folder}/runs")
    runs.open(state.runs)
    table = _open_table(folder, files, state)
    segments = Segments(files, f"{folder}/wal", state.segment_bytes, state.epoch + 1, tag)
    chain = Chain(state.previous_number, state.previous_crc, state.previous_epoch)
    replay = replay_log(files, segments, state.oldest_segment, chain, table.applied, progress)
    table.expect_strays(state.checkpoint, replay.end)
    _report_lost_end(replay, segments, table.applied)
    _find_spares(files, segments)
    damage = [*replay.damage, *runs.damage]
    if damage and options.refuses_damage:
        segments.close()
        table.close()
        runs.close()
        raise CorruptionError(damage[0].file, damage[0].offset, damage[0].reason)
    if table.applied >= state.checkpoint:
        table.used_count += replay.tails.stream_count_change
        if table.is_growing:
            # Meanwhile most deleted slots are not used again: an estimate could let it overflow.
            table.count_deleted()
    else:
        # Damaged, or that of a new generation and never synced since.
        table.count_slots((stream, tail.is_deleted) for stream, tail in replay.tails.items())
    table.applied = replay.end
    # From here on nothing that an earlier opening left behind passes for a record of this one.
    manifest.change(epoch=segments.epoch)
    segments.note_epoch(replay.end, segments.epoch)
    segments.recent.begin(replay.end)
    return OpenedLog(files, folder, lock, store_id, manifest, segments, table, runs, replay, now_ms)


def _report_lost_end(replay: Replay, segments: Segments, known_to: int) -> None:
    """The table knows of batches that the log does not have: they were acknowledged, and are gone.

    Whose they were is not known: slots follow the log at leisure.
    """
    if known_to > replay.end:
        number, offset = divmod(replay.end, segments.segment_bytes)
        reason = f"the log ends here, and {known_to - replay.end} bytes behind it were acknowledged"
        replay.damage.append(Damage(segments.path(number), offset, reason))


def _open_table(folder: str, files: Files, state: ManifestState) -> Table:
    generations = [(number, table_path(folder, number)) for number in state.table_generations]
    try:
        return Table.open(files, generations, bytes.fromhex(state.table_key))
    except FileNotFoundError as error:
        raise CorruptionError(
            str(error.filename or generations[0][1]), 0, "a listed table is missing"
        ) from error


def _remove_unlisted(folder: str, files: Files, state: ManifestState) -> None:
    """Remains of jobs that a crash cut off."""
    listed_runs = {run.name for run in state.runs}
    listed_tables = {f"queues.{number}.tab" for number in state.table_generations}
    for part, listed in (("runs", listed_runs), ("table", listed_tables)):
        for name in files.list(f"{folder}/{part}"):
            if name not in listed:
                files.remove(f"{folder}/{part}/{name}")
    if files.exists(f"{folder}/CURRENT.new"):
        files.remove(f"{folder}/CURRENT.new")


def _find_spares(files: Files, segments: Segments) -> None:
    """Prepared segments, if they are whole. One with another name may be in use under that."""
    for name in files.list(segments.folder):
        if not name.startswith("spare-"):
            continue
        path = f"{segments.folder}/{name}"
        file = files.open(path, writable=False)
        is_whole = file.size() == segments.segment_bytes
        file.close()
        if is_whole and not files.is_linked(path):
            segments.spares.append(path)
        else:
            files.remove(path)


def describe_damage(damage: Damage) -> str:
    """One line for a log or a terminal."""
    where = f"{damage.file} at byte {damage.offset}: {damage.reason}"
    if damage.stream is None:
        return where
    if not damage.lost_count:
        return f"{where} (queue {damage.stream})"
    lost = f"{damage.lost_count} entries from {damage.first_lost_seq} on"
    return f"{where} (queue {damage.stream}, {lost})"

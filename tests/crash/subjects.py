"""The stores that the crash suite works on, opened on any files."""

from dataclasses import replace
from random import Random

from syncline.storage.base import Store
from syncline.storage.files import Files
from syncline.storage.opening import open_store
from syncline.storage.options import StoreOptions
from syncline.testing.clock import START_MS
from syncline.testing.oracle import Oracle
from syncline.values import limits
from tests.crash.tiny_store import (
    BlindStore,
    EarlyStore,
    HastyStore,
    TinyStore,
    TrustingStore,
)

FOLDER = "/data"
# The log that keeps its history.
ARCHIVED = "archived log"

# Small, so that files are changed, sealed, merged and compacted within a few steps.
SMALL = StoreOptions(
    segment_bytes=limits.segment_bytes_min,
    file_message_count_max=8,
    state_line_count_max=4,
    open_file_count_max=8,
    open_queue_count_max=3,
)


def small_options(random: Random) -> StoreOptions:
    """Limits as small as they come, others each time: a queue is closed and opened between any two
    steps, and every file is rotated."""
    return replace(
        SMALL,
        path_fragment_count=random.choice((0, 1, 2)),
        path_fragment_characters=random.choice((1, 2)),
        file_message_count_max=random.choice((1, 2, 3, 8)),
        state_line_count_max=random.choice((3, 4, 6)),
        open_file_count_max=random.choice((1, 2, 3, 8)),
        open_queue_count_max=random.choice((1, 2, 3, 4_096)),
    )


# Made to be caught, but for the first.
TINY_STORES: dict[str, type[TinyStore]] = {
    "tiny": TinyStore,
    "early": EarlyStore,
    "blind": BlindStore,
    "hasty": HastyStore,
    "trusting": TrustingStore,
}


def oracle_for(kind: str) -> Oracle:
    """The journal counts its streams in the course of its upkeep: a start reads none."""
    return Oracle(expects_count=kind != "journal")


def open_subject(
    kind: str,
    files: Files,
    folder: str = FOLDER,
    options: StoreOptions = SMALL,
    *,
    seed: int | str = 0,
    now_ms: int = START_MS,
) -> Store:
    """Open a store; its chance comes from `seed` and the time.

    One that is opened again needs another chance: it takes no random name to be used already.
    """
    random_bytes = Random(f"{seed}:{now_ms}").randbytes
    if kind == ARCHIVED:
        kind, options = "log", replace(options, archive_bytes_max=3 * options.segment_bytes)
    if kind in TINY_STORES:
        tiny = TINY_STORES[kind]
        return tiny.open(folder, files, options, now_ms=now_ms, random_bytes=random_bytes)
    return open_store(kind, folder, files, options, now_ms=now_ms, random_bytes=random_bytes)

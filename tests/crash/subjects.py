"""The stores that the crash suite works on, opened on any files."""

from importlib import import_module
from random import Random

from syncline.storage.base import Store
from syncline.storage.files import Files
from syncline.storage.options import StoreOptions
from syncline.testing.clock import START_MS
from tests.storage.under_test import SMALL, STORE_CLASSES

FOLDER = "/data"

CLASSES = {
    **STORE_CLASSES,
    "tiny": "tests.crash.tiny_store.TinyStore",
    "early": "tests.crash.tiny_store.EarlyStore",
    "blind": "tests.crash.tiny_store.BlindStore",
    "hasty": "tests.crash.tiny_store.HastyStore",
    "trusting": "tests.crash.tiny_store.TrustingStore",
}
# Those that ship and write to a disk.
DISK_KINDS = ("log", "journal")


def open_subject(
    kind: str,
    files: Files,
    folder: str = FOLDER,
    options: StoreOptions = SMALL,
    *,
    seed: int = 0,
    now_ms: int = START_MS,
) -> Store:
    """Open a store; its chance comes from `seed`."""
    module, _, name = CLASSES[kind].rpartition(".")
    opened: Store = getattr(import_module(module), name).open(
        folder, files, options, now_ms=now_ms, random_bytes=Random(seed).randbytes
    )
    return opened

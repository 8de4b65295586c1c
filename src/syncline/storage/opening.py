"""Opening a store by name, or by what the data folder says it is."""

from collections.abc import Callable
from typing import Protocol

from syncline.errors import ConfigError
from syncline.storage.base import Store
from syncline.storage.files import Files
from syncline.storage.folder import read_format
from syncline.storage.journal.store import JournalStore
from syncline.storage.log.store import LogStore
from syncline.storage.memory import MemoryStore
from syncline.storage.options import AUTO_KIND, STORE_KINDS, StoreOptions

DEFAULT_KIND = "log"


class _Opener(Protocol):
    def __call__(
        self,
        folder: str,
        files: Files,
        options: StoreOptions,
        *,
        now_ms: int,
        random_bytes: Callable[[int], bytes],
    ) -> Store: ...


_OPENERS: dict[str, _Opener] = {
    "log": LogStore.open,
    "journal": JournalStore.open,
    "memory": MemoryStore.open,
}
assert tuple(_OPENERS) == STORE_KINDS


def open_store(
    kind: str,
    folder: str,
    files: Files,
    options: StoreOptions,
    *,
    now_ms: int,
    random_bytes: Callable[[int], bytes],
) -> Store:
    """Open the store of `kind` in `folder`; "auto" is the kind that is there, a log in a new one.

    Raises ConfigError for a kind that does not exist, and what the store itself raises.
    """
    if kind == AUTO_KIND:
        kind = detect_kind(folder, files) or DEFAULT_KIND
    opener = _OPENERS.get(kind)
    if opener is None:
        known = ", ".join((*STORE_KINDS, AUTO_KIND))
        raise ConfigError(f"there is no store of kind {kind!r}; choose one of {known}")
    return opener(folder, files, options, now_ms=now_ms, random_bytes=random_bytes)


def detect_kind(folder: str, files: Files) -> str | None:
    """Name the kind of store that `folder` holds; None if it holds nothing yet.

    Raises ForeignFolderError for a folder that Syncline did not make.
    """
    found = read_format(folder, files)
    return found.kind if found else None

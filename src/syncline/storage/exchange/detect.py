"""Which kind of source a path is, and importing it without being told."""

from enum import Enum

from syncline.errors import ConfigError
from syncline.storage.base import Store
from syncline.storage.exchange.journal_layout import import_journal_layout
from syncline.storage.exchange.portable import import_messages, is_messages_file
from syncline.storage.exchange.reference_folder import (
    find_reference_root,
    import_reference_journals,
)
from syncline.storage.exchange.report import ExchangeReport, Progress, no_progress
from syncline.storage.files import Files
from syncline.storage.folder import FORMAT_NAME, UNFINISHED_NAME, read_format
from syncline.storage.journal.store import STORE_KIND
from syncline.values import limits


class SourceLayout(Enum):
    JOURNAL = "journal"
    REFERENCE = "reference"
    MESSAGES = "messages"


def detect_layout(path: str, files: Files) -> SourceLayout:
    """Say what a path holds.

    Raises ConfigError if there is nothing that can be imported, ForeignFolderError for a data
    folder that was filled only by half.
    """
    if not files.exists(path):
        raise ConfigError(f"there is nothing at {path} to import")
    if not files.is_folder(path):
        if is_messages_file(path, files):
            return SourceLayout.MESSAGES
        raise ConfigError(f"{path} is no file of exported messages")
    if any(files.exists(f"{path}/{name}") for name in (FORMAT_NAME, UNFINISHED_NAME)):
        found = read_format(path, files)
        if found is not None and found.kind == STORE_KIND:
            return SourceLayout.JOURNAL
        kind = "another" if found is None else f"a {found.kind}"
        raise ConfigError(f"{path} holds {kind} store; export it, then import the export")
    if find_reference_root(path, files) is not None:
        return SourceLayout.REFERENCE
    raise ConfigError(f"{path} holds no journal that can be imported")


def import_detected(
    path: str,
    target: Store,
    files: Files,
    *,
    now_ms: int,
    quota: int = limits.queue_quota_default,
    progress: Progress = no_progress,
) -> ExchangeReport:
    """Import whatever it is; `quota` is for queues whose source does not know theirs."""
    match detect_layout(path, files):
        case SourceLayout.JOURNAL:
            return import_journal_layout(path, target, files, now_ms=now_ms, progress=progress)
        case SourceLayout.REFERENCE:
            return import_reference_journals(
                path, target, files, now_ms=now_ms, quota=quota, progress=progress
            )
        case SourceLayout.MESSAGES:
            return import_messages(path, target, files, now_ms=now_ms, progress=progress)

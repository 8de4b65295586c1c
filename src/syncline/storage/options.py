"""How a store is opened: the settings of all backends, each with its default."""

from dataclasses import dataclass

from syncline.values import limits

STORE_KINDS = ("log", "journal", "memory")
# The kind that is in the folder.
AUTO_KIND = "auto"

DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Settings of a store. A backend takes what concerns it."""

    # Without it a batch is left to the operating system: fast, and lost with the power.
    is_durable: bool = True

    # log
    segment_bytes: int = limits.segment_bytes_default
    # Seal, merge and prepare files in a process of their own, so that the event loop never stalls.
    has_job_process: bool = False
    # Damage in the middle of the log: False serves every stream that is whole, True refuses to
    # open.
    refuses_damage: bool = False
    # Sealed segments are kept up to this many bytes and this age (0: any), until they are confirmed
    # to be read; 0 bytes: they are not kept.
    archive_bytes_max: int = 0
    archive_age_ms_max: int = 0

    # journal
    path_fragment_count: int = 2
    path_fragment_characters: int = 2
    file_message_count_max: int = 256
    state_line_count_max: int = 64
    state_backup_count_min: int = 2
    state_backup_age_ms_max: int = 14 * DAY_MS
    open_file_count_max: int = 256
    open_queue_count_max: int = 4_096

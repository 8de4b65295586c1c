"""Records as rows of SQLite and back; see docs/formats/records.md.

A list of keys or certificates is one value: each item behind its length in two bytes, big-endian.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from syncline.errors import CorruptionError
from syncline.storage.records.schema import FILE_NAME
from syncline.values.digests import SetDigest, digest_from_numbers
from syncline.values.ids import StreamId
from syncline.values.queue_records import (
    BlockReason,
    LinkRecord,
    NotifierRecord,
    QueueMode,
    QueueRecord,
    QueueStatus,
    ServiceRecord,
    ServiceRole,
)

Value = bytes | int | str | None
# What SQLite gives is known by its column: the tables are strict, and nothing else writes to them.
QueueRow = tuple[
    bytes,
    bytes,
    bytes,
    bytes,
    bytes | None,
    str,
    str,
    str | None,
    int | None,
    int,
    bytes | None,
    bytes | None,
    bytes | None,
    bytes | None,
    bytes | None,
    bytes | None,
    bytes | None,
    bytes | None,
]
ServiceRow = tuple[bytes, str, bytes, bytes, int]

_LENGTH_BYTES: Final = 2
_U64: Final = (1 << 64) - 1

_MODES: Final = {mode.value: mode for mode in QueueMode}
_STATUSES: Final = {status.value: status for status in QueueStatus}

# In the order of `queue_from_row`. Data of a link is looked for only if there is a link.
QUEUE_SELECT: Final = """
    SELECT recipient_id, recipient_keys, secret, sender_id, sender_key, mode, status,
        block_reason, block_ttl_seconds, used_day,
        (SELECT service_id FROM services WHERE services.number = queues.service),
        notifier_id, notifier_key, notifier_secret,
        (SELECT service_id FROM services WHERE services.number = queues.notifier_service),
        link_id,
        CASE WHEN link_id NOTNULL THEN (SELECT fixed FROM links WHERE queue = queues.number) END,
        CASE WHEN link_id NOTNULL THEN (SELECT user FROM links WHERE queue = queues.number) END
    FROM queues
"""
SERVICE_SELECT: Final = "SELECT service_id, role, chain, fingerprint, created_s FROM services"


def bound(values: Iterable[Value]) -> list[bytearray | int | str | None]:
    """Values as they are handed to SQLite.

    For each that is bytes the module `sqlite3` looks for an adapter, in vain and at the price of an
    exception; for a bytearray it does not (bench: queues).
    """
    return [bytearray(value) if isinstance(value, bytes) else value for value in values]


def pack(items: Sequence[bytes]) -> bytes:
    return b"".join(len(item).to_bytes(_LENGTH_BYTES, "big") + item for item in items)


def unpack(packed: bytes) -> tuple[bytes, ...]:
    """Raises CorruptionError for a length that leads out of the value."""
    items: list[bytes] = []
    offset = 0
    while offset < len(packed):
        start = offset + _LENGTH_BYTES
        offset = start + int.from_bytes(packed[offset:start], "big")
        if offset > len(packed):
            raise CorruptionError(FILE_NAME, 0, "a list of keys or certificates is cut short")
        items.append(packed[start:offset])
    return tuple(items)


def queue_from_row(row: QueueRow) -> QueueRecord:
    # One unpacking: lookups spend their time here (bench: queues).
    (
        recipient_id,
        recipient_keys,
        secret,
        sender_id,
        sender_key,
        mode,
        status,
        block_reason,
        block_ttl_seconds,
        used_day,
        service_id,
        notifier_id,
        notifier_key,
        notifier_secret,
        notifier_service_id,
        link_id,
        fixed,
        user,
    ) = row
    link = notifier = block = None
    if link_id is not None:
        link = LinkRecord(link_id, _whole(fixed), _whole(user))
    if notifier_id is not None:
        notifier = NotifierRecord(
            notifier_id, _whole(notifier_key), _whole(notifier_secret), notifier_service_id
        )
    if block_reason is not None:
        block = BlockReason(block_reason, block_ttl_seconds)
    return QueueRecord(
        StreamId(recipient_id),
        unpack(recipient_keys),
        secret,
        sender_id,
        _MODES[mode],
        sender_key,
        link,
        notifier,
        _STATUSES[status],
        block,
        service_id,
        used_day,
    )


def service_from_row(row: ServiceRow) -> ServiceRecord:
    service_id, role, chain, fingerprint, created_s = row
    return ServiceRecord(service_id, ServiceRole(role), unpack(chain), fingerprint, created_s)


def digest_from_row(row: tuple[int, ...]) -> SetDigest:
    """A row of `schema.DIGEST_COLUMNS`."""
    count, md5_high, md5_low, xxh3_high, xxh3_low, *sums, version = row
    total = 0
    for part in sums:
        total = (total << 32) + part
    return digest_from_numbers(
        count, _joined(md5_high, md5_low), _joined(xxh3_high, xxh3_low), total, version
    )


def digest_to_row(digest: SetDigest) -> tuple[int, ...]:
    """Values of `schema.DIGEST_COLUMNS` that mean the same digest."""
    hashes = [
        int.from_bytes(hashed[start : start + 8], "big", signed=True)
        for hashed in (digest.xor_md5, digest.xor_xxh3)
        for start in (0, 8)
    ]
    sums = [int.from_bytes(digest.sum128[start : start + 4], "big") for start in range(0, 16, 4)]
    return (digest.count, *hashes, *sums, digest.version)


def _joined(high: int, low: int) -> int:
    return (high & _U64) << 64 | (low & _U64)


def _whole(value: bytes | None) -> bytes:
    if value is None:
        raise CorruptionError(FILE_NAME, 0, "a link or a notifier has lost a part of itself")
    return value

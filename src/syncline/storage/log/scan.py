"""Reads a segment batch by batch and tells a torn tail from damage.

Pure: takes the bytes of a segment, gives what is whole in it. Used by recovery, by sealing and by
`verify`.

- One batch is in flight at a time. So nothing valid can follow a torn batch: if a valid batch with
  a higher number stands behind a bad one, the bad one was acknowledged and is *damage*; if nothing
  valid follows, it is the *torn tail* of a crash and was never acknowledged.
- A batch that the device cannot read may have been acknowledged: it is damage, wherever it stands.
- In a damaged batch each record has its own checksum: those that pass are kept.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final

from syncline.storage.log.format import (
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    BLOCK_BYTES,
    KIND_MASK,
    LENGTH_MASK,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    BatchHeader,
    RecordKind,
    align,
    checksum_seed,
    claimed_length,
    crc32c_extend,
    is_batch_whole,
    parse_batch_header,
)

# position, kind with flags, payload length, stream, last << 24 | unread, time << 16 | quota.
# A plain tuple: there are hundreds of thousands in a segment.
RawRecord = tuple[int, int, int, bytes, int, int]

_KINDS: Final = frozenset(int(kind) for kind in RecordKind)
# Where the kind stands in a record, and what it can be, with any flags.
_KIND_OFFSET: Final = 7
_KIND_BYTE: Final = re.compile(
    b"[%s]" % b"".join(re.escape(bytes([b])) for b in range(256) if b & KIND_MASK in _KINDS)
)


@dataclass(frozen=True, slots=True)
class Chain:
    """The last batch read: what the next one must follow."""

    number: int
    crc: int
    epoch: int


@dataclass(frozen=True, slots=True)
class WholeBatch:
    """A batch that passed its checksum; `records_of` and `Tails.take` read what is in it."""

    header: BatchHeader

    @property
    def chain(self) -> Chain:
        return Chain(self.header.number, self.header.crc, self.header.epoch)


@dataclass(frozen=True, slots=True)
class DamagedStretch:
    """Bytes that were acknowledged once and fail their check; `records` are those that pass."""

    start: int
    end: int
    reason: str
    records: list[RawRecord]
    # Streams named by records that fail: a hint for the report, no proof.
    suspects: list[bytes]
    # Of `records`.
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class End:
    """Where valid batches end. `is_torn` if a batch was begun there and never completed."""

    position: int
    is_torn: bool


def batches(
    data: bytes,
    segment_start: int,
    chain: Chain | None,
    *,
    number_behind: int = 0,
    tag: int = 0,
    unreadable: Collection[int] = (),
) -> Iterator[WholeBatch | DamagedStretch | End]:
    """What a segment holds, in order; the last item is always its `End`.

    `chain` is the last batch before the segment, None if unknown. `number_behind` is the number of
    the first batch of the next segment, 0 if there is none: if it does not follow the last batch of
    this one, what is damaged at its end was acknowledged once. `tag` is the store's. `unreadable`
    are offsets of blocks for which zeros stand in. If a batch at the end has any of them, it is
    damage, and the `End` is behind it.
    """
    offset = 0
    while True:
        batch = batch_at(data, offset, segment_start, chain, tag)
        if batch is not None:
            yield batch
            chain = batch.chain
            offset = align(batch.header.end - segment_start)
            continue
        behind = next_batch(data, offset, segment_start, chain, tag)
        if behind is None:
            break
        end = behind.header.position - segment_start
        yield _damaged(data, offset, end, segment_start, chain, tag, behind.header.epoch)
        # The chain is broken by the damage: what follows is taken on its own checksum.
        chain = Chain(behind.header.number - 1, behind.header.previous_crc, behind.header.epoch)
        offset = behind.header.position - segment_start
    torn = parse_batch_header(data, offset, segment_start + offset)
    is_torn = torn is not None and (chain is None or torn.epoch >= chain.epoch)
    last_number = chain.number if chain is not None else 0
    claimed = align(torn.end - segment_start) if is_torn and torn is not None else offset + 1
    if any(offset <= block < claimed for block in unreadable):
        lost = _damaged(data, offset, len(data), segment_start, chain, tag)
        offset = min(_end_of_lost(lost, segment_start, max(unreadable), claimed), len(data))
        yield replace(lost, end=segment_start + offset)
        is_torn = False
    elif is_torn and number_behind not in (0, last_number + 1):
        # Where the log does go on, this is the torn end of an earlier opening; here it does not.
        yield _damaged(data, offset, len(data), segment_start, chain, tag)
        is_torn = False
    yield End(segment_start + offset, is_torn)


def batch_at(
    data: bytes, offset: int, segment_start: int, chain: Chain | None, tag: int
) -> WholeBatch | None:
    """The batch that begins there, if it is whole and follows `chain`."""
    header = parse_batch_header(data, offset, segment_start + offset)
    if header is None:
        return None
    if chain is not None and (
        header.number != chain.number + 1
        or header.previous_crc != chain.crc
        or header.epoch < chain.epoch
    ):
        return None
    return WholeBatch(header) if is_batch_whole(data, offset, header, tag) else None


def records_of(data: bytes, segment_start: int, batch: WholeBatch) -> list[RawRecord]:
    """All records of a batch.

    Its checksum covers every byte of them, so their own need not be looked at.
    """
    records: list[RawRecord] = []
    at = batch.header.position - segment_start + BATCH_HEADER_BYTES
    end = at + batch.header.length
    unpack = RECORD_HEADER.unpack_from
    while at + RECORD_HEADER_BYTES <= end:
        _, kind_length, stream, last_unread, time_quota = unpack(data, at)
        length = kind_length & LENGTH_MASK
        behind = at + RECORD_HEADER_BYTES + length
        if behind > end:
            break
        records.append(
            (segment_start + at, kind_length >> 24, length, stream, last_unread, time_quota)
        )
        at = behind
    return records


def next_batch(
    data: bytes, offset: int, segment_start: int, chain: Chain | None, tag: int = 0
) -> WholeBatch | None:
    """The first whole batch from `offset` on that was written after `chain`.

    One at `offset` itself is whole but does not follow the chain: batches before it are missing.
    """
    for at in range(align(offset), len(data), BLOCK_BYTES):
        # Of the blocks behind the last batch most are empty: one look at each.
        if not data.startswith(BATCH_MAGIC, at):
            continue
        header = parse_batch_header(data, at, segment_start + at)
        if (
            header is not None
            and (chain is None or (header.number > chain.number and header.epoch >= chain.epoch))
            and is_batch_whole(data, at, header, tag)
        ):
            return WholeBatch(header)
    return None


def used_bytes(data: bytes, position: int) -> int:
    """How far the batches reach that begin in these blocks, by what their headers claim.

    0 if none does. `position` is that of the first block; no claim is checked.
    """
    used = 0
    for at in range(0, len(data), BLOCK_BYTES):
        if data.startswith(BATCH_MAGIC, at):
            found, length = claimed_length(data, at)
            if found == position + at:
                used = max(used, at + BATCH_HEADER_BYTES + length)
    return used


def _damaged(
    data: bytes,
    start: int,
    end: int,
    segment_start: int,
    chain: Chain | None,
    tag: int,
    epoch_behind: int | None = None,
) -> DamagedStretch:
    if start == end:
        return DamagedStretch(
            segment_start + start,
            segment_start + end,
            "batches before this one are missing",
            [],
            [],
        )
    header = parse_batch_header(data, start, segment_start + start)
    # The header may be what is damaged: then the epoch is that of a batch before or behind it.
    epochs = {header.epoch} if header is not None else set[int]()
    if chain is not None:
        epochs.add(chain.epoch)
    if epoch_behind is not None:
        epochs.add(epoch_behind)
    reason = "a batch fails its checksum" if header is not None else "a batch header is unreadable"
    best: tuple[list[RawRecord], list[bytes], int] = ([], [], 0)
    for epoch in sorted(epochs):
        found = _salvage(data, start + BATCH_HEADER_BYTES, end, segment_start, epoch ^ tag)
        if len(found[0]) >= len(best[0]):
            best = (*found, epoch)
    return DamagedStretch(segment_start + start, segment_start + end, reason, *best)


def _end_of_lost(lost: DamagedStretch, segment_start: int, last_block: int, claimed: int) -> int:
    """Where nothing is that may have been acknowledged: what was saved must not be written over."""
    ends = [position + RECORD_HEADER_BYTES + length for position, _, length, *_ in lost.records]
    saved = max(ends, default=segment_start) - segment_start
    return align(max(saved, last_block + BLOCK_BYTES, claimed))


def _salvage(
    data: bytes, at: int, end: int, segment_start: int, epoch: int
) -> tuple[list[RawRecord], list[bytes]]:
    """Every record between `at` and `end` that passes its checksum, wherever it starts."""
    records: list[RawRecord] = []
    suspects: list[bytes] = []
    unpack = RECORD_HEADER.unpack_from
    is_expected = True
    while at + RECORD_HEADER_BYTES <= end:
        crc, kind_length, stream, last_unread, time_quota = unpack(data, at)
        length = kind_length & LENGTH_MASK
        behind = at + RECORD_HEADER_BYTES + length
        kind = kind_length >> 24
        position = segment_start + at
        # The cheap tests come first: they turn away all but one in thousands of wrong places.
        if (
            kind & KIND_MASK in _KINDS
            and behind <= end
            and crc32c_extend(checksum_seed(position, epoch), data[at + 4 : behind]) == crc
        ):
            records.append((position, kind, length, stream, last_unread, time_quota))
            at = behind
            is_expected = True
            continue
        if is_expected and any(stream):
            suspects.append(stream)
        is_expected = False
        # On to the next byte that can be a kind: most of what is not in use is zeros.
        candidate = _KIND_BYTE.search(data, at + 1 + _KIND_OFFSET, end)
        if candidate is None:
            break
        at = candidate.start() - _KIND_OFFSET
    return records, suspects

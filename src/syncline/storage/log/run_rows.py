"""What a run is made of: its rows, and what a manifest keeps of it."""

from dataclasses import dataclass
from typing import Final

from syncline.storage.base import Damage
from syncline.storage.log.format import (
    CLASS_BITS,
    CLASS_ENTRY,
    LENGTH_MASK,
    RUN_FOOTER_BYTES,
    RUN_KEY,
    RUN_KEY_BYTES,
    RUN_ROW,
    RUN_ROW_BYTES,
)
from syncline.values.ids import STREAM_ID_BYTES, StreamId

SEQUENCE_MAX: Final = (1 << CLASS_BITS) - 1


@dataclass(frozen=True, slots=True)
class RunMeta:
    """What a manifest keeps of a run. `name` is the file's name without its folder."""

    name: str
    row_count: int
    file_bytes: int
    lowest_time_ms: int
    highest_time_ms: int
    lowest_position: int
    highest_position: int
    index_crc: int

    @property
    def index_offset(self) -> int:
        return self.file_bytes - RUN_FOOTER_BYTES - self.row_count * RUN_ROW_BYTES


@dataclass(frozen=True, slots=True)
class RunRow:
    """One row as the index has it; `Run.payload` checks it. `index` is its place in the run."""

    index: int
    row_class: int
    seq: int
    position: int
    time_ms: int
    offset: int
    kind: int
    length: int


def parse_row(index: int, row: bytes) -> RunRow:
    _, class_seq = RUN_KEY.unpack_from(row)
    position, time_ms, offset, kind_length, _ = RUN_ROW.unpack_from(row, RUN_KEY_BYTES)
    return RunRow(
        index,
        class_seq >> CLASS_BITS,
        class_seq & SEQUENCE_MAX,
        position,
        time_ms,
        offset,
        kind_length >> 24,
        kind_length & LENGTH_MASK,
    )


def row_damage(path: str, index_offset: int, row: bytes, index: int, reason: str) -> Damage:
    """Report a row. The id comes from its key, which may itself be what is damaged."""
    found = parse_row(index, row)
    is_entry = found.row_class == CLASS_ENTRY
    return Damage(
        path,
        index_offset + index * RUN_ROW_BYTES,
        reason,
        StreamId(row[:STREAM_ID_BYTES]),
        found.seq if is_entry else None,
        1 if is_entry else 0,
    )

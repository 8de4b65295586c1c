"""A segment that is mostly wanted becomes a run where it lies: rows and a footer behind its end.

Copying survivors pays when they are few. When they are many the file itself gets a second name
among the runs: the log goes on with another segment, and nothing is written twice (bench: log).

- The first `segment_bytes` stay as they are: it is a whole segment until the manifest says that it
  is sealed, and an archive may keep it after that. Whoever reuses segments passes by one that has
  two names (`Files.is_linked`).
- A job process that outlived its router may be at the same file. Only one at a time can claim it.
"""

import posixpath
from typing import TYPE_CHECKING, Final

from syncline.storage.files import File, Files
from syncline.storage.log.format import (
    LENGTH_MASK,
    RUN_FOOTER_BYTES,
    RUN_ROW_BYTES,
    crc32c_extend,
)
from syncline.storage.log.run_rows import RunMeta
from syncline.storage.log.run_writer import encode_footer, fill_checksums, newest_of_each_key

if TYPE_CHECKING:
    from syncline.kernels.rows import Rows

_SUFFIX: Final = ".run"
# r-<epoch>-<count>-<segment>
_ADOPTED_PART_COUNT: Final = 4


def adopted_path(run_path: str, number: int) -> str:
    """Of the run that segment `number` becomes in a job that would write `run_path`."""
    return f"{run_path.removesuffix(_SUFFIX)}-{number}{_SUFFIX}"


def adopted_number(run_name: str) -> int | None:
    """Which segment a run was; None if it was none."""
    parts = run_name.removesuffix(_SUFFIX).split("-")
    return int(parts[-1]) if len(parts) == _ADOPTED_PART_COUNT else None


def adopt_segment(
    files: Files, segment_path: str, data: bytes, segment_bytes: int, rows: "Rows", run_path: str
) -> RunMeta | None:
    """Make a durable run of a segment; None if it cannot be done here.

    `data` are its bytes, `rows` those of the index, one at least, with offsets into it; their
    checksums are filled in. Raises StorageError, and may leave rows behind the segment's end.
    """
    file = files.open(segment_path)
    try:
        if not file.claim():
            return None
        run = _write_index(file, data, segment_bytes, rows, posixpath.basename(run_path))
    finally:
        file.close()
    if not files.link(segment_path, run_path):
        return None
    files.sync_folder(posixpath.dirname(run_path) or ".")
    return run


def _write_index(file: File, data: bytes, segment_bytes: int, rows: "Rows", name: str) -> RunMeta:
    starts = rows["offset"].astype("int64")
    ends = (starts + (rows["kind_length"] & LENGTH_MASK)).tolist()
    fill_checksums(
        rows, (data[start:end] for start, end in zip(starts.tolist(), ends, strict=True))
    )
    index = newest_of_each_key(rows.tobytes())
    run = RunMeta(
        name,
        len(index) // RUN_ROW_BYTES,
        segment_bytes + len(index) + RUN_FOOTER_BYTES,
        int(rows["time_ms"].min()),
        int(rows["time_ms"].max()),
        int(rows["position"].min()),
        int(rows["position"].max()),
        crc32c_extend(0, index),
    )
    # What an attempt that was cut off left there.
    file.truncate(segment_bytes)
    file.write(segment_bytes, [index, encode_footer(run)])
    file.sync()
    return run

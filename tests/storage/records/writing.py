"""A process that writes batches one after the other and says which are durable, and since when.

    python -m tests.storage.records.writing <folder> <first batch> <batch count> [<flaw>]

It says the number of a batch, and the nanoseconds of the clock that all processes share.

Flaws, which must be caught: `early` says a number before the batch is written, `unsynced` leaves
syncing to the system.
"""

import sys
import time

from syncline.storage.files import DiskFiles
from syncline.storage.records.base import commit
from syncline.storage.records.sqlite import SqliteRecords
from tests.storage.records.under_test import SMALL
from tests.storage.records.workload import stage

# The WAL is brought into the file every other batch, so that a crash meets that too.
CHECKPOINT_FRAMES = 64


def main(folder: str, first: str, count: str, flaw: str = "") -> None:
    records = SqliteRecords.open(folder, DiskFiles(), SMALL)
    records._writing.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_FRAMES}").fetchone()
    if flaw == "unsynced":
        records._writing.execute("PRAGMA synchronous = OFF")
    for number in range(int(first), int(first) + int(count)):
        stage(records, number)
        if flaw == "early":
            _say(number)
            commit(records)
        else:
            commit(records)
            _say(number)


def _say(number: int) -> None:
    print(number, time.monotonic_ns(), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])

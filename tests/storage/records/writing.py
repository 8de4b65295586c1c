"""A process that writes batches one after the other and says the number of each that is durable.

    python -m tests.storage.records.writing <folder> <first batch> <batch count> [<flaw>]

Flaws, which must be caught: `early` says a number before the batch is written, `unsynced` leaves
syncing to the system.
"""

import sys

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
            print(number, flush=True)  # noqa: T201
            commit(records)
        else:
            commit(records)
            print(number, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])

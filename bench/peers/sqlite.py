"""SQLite in WAL mode with synchronous=FULL: one transaction per group of messages.

Rows are appended in the order of arrival and found by an index of (queue, row): with 1 KB bodies
this is three times as fast as a table clustered by queue.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from bench.support.workload import Message

_CACHE_KIB = 64 * 1024
_HEAD = "SELECT body FROM message WHERE queue = ? ORDER BY row LIMIT 1"
_DELETE_HEAD = "DELETE FROM message WHERE row = (SELECT min(row) FROM message WHERE queue = ?)"


class SqliteStore:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._database = sqlite3.connect(folder / "messages.db", isolation_level=None)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            f"PRAGMA cache_size = -{_CACHE_KIB}",
            "CREATE TABLE IF NOT EXISTS message (row INTEGER PRIMARY KEY, queue BLOB, body BLOB)",
            "CREATE INDEX IF NOT EXISTS by_queue ON message (queue, row)",
        ):
            self._database.execute(statement)

    def write(self, messages: Sequence[Message], acknowledged: Sequence[bytes] = ()) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany("INSERT INTO message (queue, body) VALUES (?, ?)", messages)
        self._database.executemany(_DELETE_HEAD, ((queue,) for queue in acknowledged))
        self._database.execute("COMMIT")

    def read(self, queues: Sequence[bytes]) -> list[bytes]:
        execute = self._database.execute
        return [execute(_HEAD, (queue,)).fetchone()[0] for queue in queues]

    def count(self) -> int:
        count: int = self._database.execute("SELECT count(*) FROM message").fetchone()[0]
        return count

    def close(self) -> None:
        self._database.close()

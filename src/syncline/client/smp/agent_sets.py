"""The ids of a service in an agent's store as a set, and the digest that is kept of it.

Both are of one moment if whoever asks holds a transaction, as `AgentStore.read_set` does.
"""

import sqlite3
from typing import Final

from syncline.client.smp.agent_records import Account
from syncline.storage.id_sets import SqliteIdSet
from syncline.storage.set_digests import digest_of_set
from syncline.values.digests import EMPTY_DIGEST, SetDigest
from syncline.values.queue_records import ServiceRole

TABLES: Final = {ServiceRole.MESSAGING: "queues", ServiceRole.NOTIFIER: "notifiers"}
# MD5, XXH3-128 and the sum of the latter.
_DIGEST_BYTES: Final = 48
_WHERE: Final = "WHERE user_id = ? AND server_id = ? AND role = ?"


class StoredIds(SqliteIdSet):
    """Counted and hashed from the ids; `kept` is what the store has kept of them, which may be
    wrong if somebody has damaged it."""

    def __init__(self, connection: sqlite3.Connection, account: Account, path: str) -> None:
        """Of an account that is not there: no ids, version 0."""
        self._key = (account.user_id, account.server_id, account.role.value)
        row = connection.execute(
            f"SELECT generation, queue_count, digest, version FROM services {_WHERE}", self._key
        ).fetchone()
        # No row has a generation below zero.
        self.generation, self.kept = -1, EMPTY_DIGEST
        if row is not None:
            self.generation, self.kept = row[0], digest_of_row(*row[1:])
        super().__init__(
            connection,
            f"(SELECT entity_id AS id FROM {TABLES[account.role]}"
            " WHERE user_id = ? AND server_id = ? AND service_generation = ?)",
            (account.user_id, account.server_id, self.generation),
            version=lambda: self.kept.version,
            path=path,
        )

    def counted(self) -> SetDigest:
        """What should be kept."""
        return digest_of_set(self)

    def keep(self, connection: sqlite3.Connection, digest: SetDigest) -> bool:
        """In place of what is kept. False, and nothing is changed, if the set has changed."""
        changed = connection.execute(
            f"UPDATE services SET queue_count = ?, digest = ?, version = version + 1 {_WHERE}"
            " AND version = ? AND generation = ?",
            (
                digest.count,
                digest.xor_md5 + digest.xor_xxh3 + digest.sum128,
                *self._key,
                self.kept.version,
                self.generation,
            ),
        )
        return changed.rowcount == 1


def digest_of_row(count: int, digest: bytes, version: int) -> SetDigest:
    # Whatever somebody wrote there: what is sent and compared has its length.
    digest = digest.ljust(_DIGEST_BYTES, b"\0")[:_DIGEST_BYTES]
    return SetDigest(count, digest[:16], digest[16:32], digest[32:], version)

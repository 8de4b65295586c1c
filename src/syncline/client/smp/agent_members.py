"""What queues and notifiers have in common in an agent's store: they are wanted, subscribed, and
belong to the service of their account or not. Methods that take many ids make one transaction of
them."""

from collections.abc import Generator, Sequence
from typing import Final

import msgspec

from syncline.client.smp.agent_accounts import StoredAccounts, account_key, make_account
from syncline.client.smp.agent_database import Row
from syncline.client.smp.agent_records import Account, Subscribable
from syncline.client.smp.agent_sets import TABLES
from syncline.client.smp.repair_plan import Known
from syncline.links.private_keys import PrivateKey
from syncline.wire.smp.keys import KeyKind

# Ids in one statement; SQLite takes 32,766.
_STATEMENT_ID_COUNT: Final = 500
# Of the service of an account, in the statement that asks for it: others write meanwhile.
_GENERATION: Final = (
    "coalesce((SELECT generation FROM services"
    " WHERE user_id = ? AND server_id = ? AND role = ?), 1)"
)


class StoredMembers(StoredAccounts):
    """See the module."""

    def associate(self, account: Account, ids: Sequence[bytes]) -> list[bytes]:
        """They belong to the service of the account now. Returns those that did not before."""
        joined: list[bytes] = []
        with self._writing() as db:
            table, generation = TABLES[account.role], make_account(db, account)
            for part in _parts(ids):
                rows = db.execute(
                    f"UPDATE {table} SET service_generation = ? WHERE user_id = ? AND server_id = ?"
                    f" AND service_generation <> ? AND entity_id IN ({part.marks})"
                    " RETURNING entity_id",
                    (generation, account.user_id, account.server_id, generation, *part.ids),
                ).fetchall()
                joined += [entity_id for (entity_id,) in rows]
        return joined

    def dissociate(self, account: Account, ids: Sequence[bytes]) -> None:
        """They no longer belong to the service."""
        with self._writing() as db:
            for part in _parts(ids):
                db.execute(
                    f"UPDATE {TABLES[account.role]} SET service_generation = 0 WHERE user_id = ?"
                    f" AND server_id = ? AND entity_id IN ({part.marks})",
                    (account.user_id, account.server_id, *part.ids),
                )

    def unassociated(
        self, account: Account, after: tuple[int, bytes] | None, count: int
    ) -> list[Subscribable]:
        """A page of those that have to be subscribed by themselves. Associating what is on a page
        moves nothing past the next one."""
        rows = self._all(
            f"SELECT entity_id, key_kind, key, service_generation FROM {TABLES[account.role]}"
            f" WHERE user_id = ? AND server_id = ? AND service_generation < {_GENERATION}"
            " AND is_wanted"
            " AND (service_generation, entity_id) > (?, ?)"
            " ORDER BY service_generation, entity_id LIMIT ?",
            (
                account.user_id,
                account.server_id,
                *account_key(account),
                *(after or (-1, b"")),
                count,
            ),
        )
        return [_subscribable(row) for row in rows]

    def has_queues(self, account: Account) -> bool:
        """Whether there is anything that is to be subscribed."""
        [found] = self._one(
            f"SELECT EXISTS (SELECT 1 FROM {TABLES[account.role]}"
            " WHERE user_id = ? AND server_id = ? AND is_wanted)",
            (account.user_id, account.server_id),
        )
        return bool(found)

    def subscribable(self, account: Account, ids: Sequence[bytes]) -> list[Subscribable]:
        """Those of these ids that the account has."""
        found: list[Subscribable] = []
        for part in _parts(ids):
            rows = self._all(
                f"SELECT entity_id, key_kind, key, service_generation FROM {TABLES[account.role]}"
                f" WHERE user_id = ? AND server_id = ? AND entity_id IN ({part.marks})",
                (account.user_id, account.server_id, *part.ids),
            )
            found += [_subscribable(row) for row in rows]
        return found

    def known(self, account: Account, ids: Sequence[bytes]) -> dict[bytes, Known]:
        """How those of these ids stand that the account has."""
        found: dict[bytes, Known] = {}
        for part in _parts(ids):
            rows = self._all(
                f"SELECT entity_id, is_wanted, service_generation = {_GENERATION}"
                f" FROM {TABLES[account.role]}"
                f" WHERE user_id = ? AND server_id = ? AND entity_id IN ({part.marks})",
                (*account_key(account), account.user_id, account.server_id, *part.ids),
            )
            found |= {row[0]: Known(bool(row[1]), bool(row[2])) for row in rows}
        return found

    def set_wanted(self, account: Account, ids: Sequence[bytes], is_wanted: bool) -> None:
        """Whether they are to be subscribed when the agent connects."""
        with self._writing() as db:
            for part in _parts(ids):
                db.execute(
                    f"UPDATE {TABLES[account.role]} SET is_wanted = ? WHERE user_id = ?"
                    f" AND server_id = ? AND entity_id IN ({part.marks})",
                    (int(is_wanted), account.user_id, account.server_id, *part.ids),
                )

    def forget(self, account: Account, entity_id: bytes) -> None:
        """The queue or notifier is no more."""
        with self._writing() as db:
            db.execute(
                f"DELETE FROM {TABLES[account.role]} WHERE server_id = ? AND entity_id = ?",
                (account.server_id, entity_id),
            )


class _Part(msgspec.Struct):
    ids: Sequence[bytes]

    @property
    def marks(self) -> str:
        return ", ".join("?" * len(self.ids))


def _parts(ids: Sequence[bytes]) -> Generator[_Part]:
    for start in range(0, len(ids), _STATEMENT_ID_COUNT):
        yield _Part(ids[start : start + _STATEMENT_ID_COUNT])


def _subscribable(row: Row) -> Subscribable:
    entity_id, kind, key, generation = row
    return Subscribable(entity_id, private_key(kind, key), (generation, entity_id))


def private_key(kind: str, raw: bytes) -> PrivateKey:
    return PrivateKey(KeyKind(kind), raw)

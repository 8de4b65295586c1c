"""Users, servers, and the services of both together, in an agent's store.

What a service should have at a router, its count and hash, is kept by triggers in the transaction
that changes it (`agent_schema`).
"""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from syncline.certificates import ServiceCredentials, SigningKey
from syncline.client.smp import agent_schema
from syncline.client.smp.agent_database import AgentDatabase
from syncline.client.smp.agent_records import Account, StoredService
from syncline.client.smp.agent_sets import TABLES, StoredIds, digest_of_row
from syncline.values.digests import EMPTY_DIGEST, SetDigest
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp.addresses import RouterAddress

# How often a digest is computed without holding up anybody.
_REPAIR_TRY_COUNT: Final = 3
_WHERE: Final = "WHERE user_id = ? AND server_id = ? AND role = ?"
_FIRST_GENERATION: Final = 1


class StoredAccounts(AgentDatabase):
    """See the module."""

    # ------------------------------------------------------------------------ users, servers

    def user(self, name: str) -> int:
        """The user of this name, made if there is none."""
        # Looked for first: an insertion would wait for other programs, even one of nothing.
        select = "SELECT user_id FROM users WHERE name = ?"
        rows = self._all(select, (name,))
        if rows:
            return int(rows[0][0])
        with self._writing() as db:
            db.execute("INSERT INTO users (name) VALUES (?) ON CONFLICT DO NOTHING", (name,))
            [user_id] = db.execute(select, (name,)).fetchone()
        return int(user_id)

    def user_name(self, user_id: int) -> str:
        [name] = self._one("SELECT name FROM users WHERE user_id = ?", (user_id,))
        return str(name)

    def server(self, address: RouterAddress) -> int:
        """The server with these hosts, port and key, made if there is none."""
        key = (address.fingerprint, ",".join(address.hosts), address.port)
        select = (
            "SELECT server_id, password FROM servers"
            " WHERE fingerprint = ? AND hosts = ? AND port = ?"
        )
        rows = self._all(select, key)
        if rows and address.password in (None, rows[0][1]):
            return int(rows[0][0])
        with self._writing() as db:
            db.execute(
                "INSERT INTO servers (fingerprint, hosts, port, password) VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET password = coalesce(excluded.password, password)",
                (*key, address.password),
            )
            server_id, _ = db.execute(select, key).fetchone()
        return int(server_id)

    def address(self, server_id: int) -> RouterAddress:
        fingerprint, hosts, port, password = self._one(
            "SELECT fingerprint, hosts, port, password FROM servers WHERE server_id = ?",
            (server_id,),
        )
        return RouterAddress(fingerprint, tuple(hosts.split(",")), port, password)

    def delete_user(self, user_id: int) -> None:
        """With everything that is the user's; nothing is said to any router."""
        with self._writing() as db:
            db.execute("DELETE FROM users WHERE user_id = ?", (user_id,))

    def delete_server(self, server_id: int) -> None:
        """With everything at it; nothing is said to the router."""
        with self._writing() as db:
            db.execute("DELETE FROM servers WHERE server_id = ?", (server_id,))

    # ----------------------------------------------------------------- accounts and services

    def account(
        self, user: str, address: RouterAddress, role: ServiceRole = ServiceRole.MESSAGING
    ) -> Account:
        """The account of a user at a server, made if there is none."""
        account = Account(self.user(user), self.server(address), role)
        if not self._all(f"SELECT 1 FROM services {_WHERE}", account_key(account)):
            with self._writing() as db:
                make_account(db, account)
        return account

    def accounts(self) -> list[Account]:
        """All that there are."""
        rows = self._all("SELECT user_id, server_id, role FROM services ORDER BY 1, 2, 3")
        return [Account(user, server, ServiceRole(role)) for user, server, role in rows]

    def service(self, account: Account) -> StoredService:
        """What is known of the service of an account: nothing, of one that is not there yet."""
        rows = self._all(
            "SELECT chain, private_key, service_id, generation, queue_count, digest, version,"
            f" wants_all FROM services {_WHERE}",
            account_key(account),
        )
        if not rows:
            return StoredService(account, None, None, _FIRST_GENERATION, EMPTY_DIGEST, True)
        [(chain, private_key, service_id, generation, count, digest, version, wants_all)] = rows
        credentials = None
        if chain is not None:
            credentials = ServiceCredentials(_chain(chain), SigningKey.decode(private_key))
        return StoredService(
            account,
            credentials,
            service_id,
            generation,
            digest_of_row(count, digest, version),
            bool(wants_all),
        )

    def save_credentials(self, account: Account, credentials: ServiceCredentials) -> None:
        """New ones: whatever the old ones were known as, and had, is no longer theirs."""
        self._change_service(
            account,
            "chain = ?, private_key = ?, service_id = NULL, generation = generation + 1",
            (msgspec.msgpack.encode(credentials.chain), credentials.key.encoded),
        )

    def save_service_id(self, account: Account, service_id: bytes) -> None:
        """As the router gave it. If it is another one, no queue is associated any more."""
        self._change_service(
            account,
            "generation = generation + (service_id IS NOT ?1), service_id = ?1",
            (service_id,),
        )

    def forget_associations(self, account: Account) -> None:
        """The service stays, without queues."""
        self._change_service(account, "generation = generation + 1", ())

    def forget_service_id(self, account: Account) -> None:
        """The router has no service for us now; the credentials are kept for when it has again."""
        self._change_service(account, "generation = generation + 1, service_id = NULL", ())

    def forget_credentials(self, account: Account) -> None:
        """The router does not take them: the next service has new ones."""
        self._change_service(
            account,
            "generation = generation + 1, service_id = NULL, chain = NULL, private_key = NULL",
            (),
        )

    def want_all(self, account: Account, wants_all: bool) -> None:
        """Keep, or take back, the intent to be subscribed to everything of the account."""
        self._change_service(account, "wants_all = ?", (int(wants_all),))

    def _change_service(self, account: Account, change: str, values: Sequence[object]) -> None:
        where = "WHERE user_id = ?{} AND server_id = ?{} AND role = ?{}"
        first = len(values) + 1
        with self._writing() as db:
            make_account(db, account)
            db.execute(
                f"UPDATE services SET {change} {where.format(first, first + 1, first + 2)}",
                (*values, *account_key(account)),
            )

    # ------------------------------------------------------------------- ids of a service

    def recompute(self, account: Account) -> SetDigest:
        """What the digest of the service should be, from its queues one by one."""
        service = self.service(account)
        count, digest = 0, agent_schema.EMPTY_DIGEST
        with self._apart() as connection:
            rows = connection.execute(
                f"SELECT entity_id FROM {TABLES[account.role]}"
                " WHERE user_id = ? AND server_id = ? AND service_generation = ?",
                (account.user_id, account.server_id, service.generation),
            )
            for (entity_id,) in rows:
                count, digest = count + 1, agent_schema.digest_with(digest, entity_id)
        return digest_of_row(count, digest, service.digest.version)

    @contextmanager
    def read_set(self, account: Account) -> Generator[StoredIds]:
        """The ids of the service as they are now, whatever is changed meanwhile: on a connection of
        its own, on any thread. Of a store in memory: in place, on the store's thread."""
        with self._apart() as connection:
            if not self.is_in_memory:
                connection.execute("BEGIN")
            yield StoredIds(connection, account, self.path)

    def repair_digest(self, account: Account) -> bool:
        """Whether what is kept of the ids of the service was wrong; it is right, and that is
        durable, when this returns. On any thread, as `read_set`."""
        with self._apart() as connection:
            # Computed while others go on; if they change the set each time, they wait for once.
            for begin in (*("BEGIN",) * _REPAIR_TRY_COUNT, "BEGIN IMMEDIATE"):
                connection.execute(begin)
                ids = StoredIds(connection, account, self.path)
                digest = ids.counted()
                if begin == "BEGIN":
                    connection.execute("COMMIT")
                is_right = digest == ids.kept
                is_repaired = not is_right and ids.keep(connection, digest)
                if connection.in_transaction:
                    connection.execute("COMMIT")
                if is_right or is_repaired:
                    return is_repaired
            raise AssertionError("a set does not change while it is locked")


def make_account(db: sqlite3.Connection, account: Account) -> int:
    """If there is none, within a transaction. Returns the generation of its service."""
    db.execute(
        "INSERT INTO services (user_id, server_id, role) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        account_key(account),
    )
    [generation] = db.execute(
        f"SELECT generation FROM services {_WHERE}", account_key(account)
    ).fetchone()
    return int(generation)


def account_key(account: Account) -> tuple[int, int, str]:
    return account.user_id, account.server_id, account.role.value


def _chain(encoded: bytes) -> tuple[bytes, ...]:
    return msgspec.msgpack.decode(encoded, type=tuple[bytes, ...])

"""Where an agent keeps its keys, its queues and its services: one SQLite file, for its owner alone.

What a service should have at a router, its count and hash, is kept by triggers in the transaction
that changes it (`agent_schema`). Every change is durable when its method returns; methods that
take many ids make one transaction of them. A store is used from one thread, but for `read_set` and
`repair_digest`, which read everything and take their time.
"""

import os
import sqlite3
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from syncline.certificates import ServiceCredentials, SigningKey
from syncline.client.smp import agent_schema
from syncline.client.smp.agent_records import (
    Account,
    NotifierCredentials,
    StoredNotifier,
    StoredQueue,
    StoredSender,
    StoredService,
    Subscribable,
)
from syncline.client.smp.agent_sets import TABLES, StoredIds, digest_of_row
from syncline.client.smp.repair_plan import Known
from syncline.errors import ConfigError, NewerFormatError, QueueExistsError, UnknownQueueError
from syncline.links.private_keys import PrivateKey
from syncline.values.digests import SetDigest
from syncline.values.queue_records import QueueMode, ServiceRole
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.keys import KeyKind

# Two programs may use one store, such as a sender and a reader: one waits for the other.
_BUSY_SECONDS = 10.0
# How often a digest is computed without holding up anybody.
_REPAIR_TRY_COUNT = 3
# Ids in one statement; SQLite takes 32,766.
_STATEMENT_ID_COUNT = 500

_QUEUE_COLUMNS = (
    "user_id, server_id, name, entity_id, sender_id, mode, key_kind, key, secret, envelope_key,"
    " sender_dh, notifier_id, notifier_key_kind, notifier_key, notifier_secret, link_id,"
    " is_wanted, done_message_id"
)
_SELECT_QUEUE = (
    f"SELECT {_QUEUE_COLUMNS}, service_generation > 0 AND service_generation IS ("
    " SELECT generation FROM services WHERE services.user_id = queues.user_id"
    " AND services.server_id = queues.server_id AND role = 'M') FROM queues"
)
# A row as SQLite gives it.
_Row = tuple[Any, ...]


class AgentStore:
    """See the module."""

    def __init__(self, path: Path | str) -> None:
        """Opens the file, or makes it. `:memory:` keeps nothing. Raises ConfigError for what is no
        store, and NewerFormatError for one of a later version."""
        self.path = str(path)
        self.is_in_memory = self.path == ":memory:"
        # Wherever the program goes meanwhile.
        self._uri = "" if self.is_in_memory else f"{Path(path).absolute().as_uri()}?mode=rw"
        if not self.is_in_memory:
            _make_private(Path(path))
        # Transactions are begun here, by hand.
        self._db = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise ConfigError(
                f"{self.path} is no store of an agent ({error}); choose another file"
            ) from error
        except BaseException:
            self._db.close()
            raise

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        agent_schema.prepare(self._db)
        [version] = self._one("PRAGMA user_version")
        [has_tables] = self._one("SELECT EXISTS (SELECT 1 FROM sqlite_master)")
        if version > agent_schema.SCHEMA_VERSION:
            raise NewerFormatError(self.path, version, agent_schema.SCHEMA_VERSION)
        if version == 0 and has_tables:
            raise ConfigError(f"{self.path} is a database of something else; choose another file")
        if version == 0:
            self._create()

    def _create(self) -> None:
        try:
            agent_schema.create(self._db)
        except sqlite3.OperationalError:
            # Another program made it at the same moment, or it cannot be made at all.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            [version] = self._one("PRAGMA user_version")
            if version != agent_schema.SCHEMA_VERSION:
                raise

    def close(self) -> None:
        self._db.close()

    # ------------------------------------------------------------------------ users, servers

    def user(self, name: str) -> int:
        """The user of this name, made if there is none."""
        self._db.execute("INSERT INTO users (name) VALUES (?) ON CONFLICT DO NOTHING", (name,))
        [user_id] = self._one("SELECT user_id FROM users WHERE name = ?", (name,))
        return int(user_id)

    def user_name(self, user_id: int) -> str:
        [name] = self._one("SELECT name FROM users WHERE user_id = ?", (user_id,))
        return str(name)

    def server(self, address: RouterAddress) -> int:
        """The server with these hosts, port and key, made if there is none."""
        key = (address.fingerprint, ",".join(address.hosts), address.port)
        with self._writing():
            self._db.execute(
                "INSERT INTO servers (fingerprint, hosts, port, password) VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET password = coalesce(excluded.password, password)",
                (*key, address.password),
            )
        where = "WHERE fingerprint = ? AND hosts = ? AND port = ?"
        [server_id] = self._one(f"SELECT server_id FROM servers {where}", key)
        return int(server_id)

    def address(self, server_id: int) -> RouterAddress:
        fingerprint, hosts, port, password = self._one(
            "SELECT fingerprint, hosts, port, password FROM servers WHERE server_id = ?",
            (server_id,),
        )
        return RouterAddress(fingerprint, tuple(hosts.split(",")), port, password)

    def delete_user(self, user_id: int) -> None:
        """With everything that is the user's; nothing is said to any router."""
        self._db.execute("DELETE FROM users WHERE user_id = ?", (user_id,))

    def delete_server(self, server_id: int) -> None:
        """With everything at it; nothing is said to the router."""
        self._db.execute("DELETE FROM servers WHERE server_id = ?", (server_id,))

    # ----------------------------------------------------------------- accounts and services

    def accounts(self) -> list[Account]:
        """All that there are."""
        rows = self._all("SELECT user_id, server_id, role FROM services ORDER BY 1, 2, 3")
        return [Account(user, server, ServiceRole(role)) for user, server, role in rows]

    def service(self, account: Account) -> StoredService:
        """What is known of the service of an account; the account is made if there is none."""
        self._make_account(account)
        chain, private_key, service_id, generation, count, digest, version, wants_all = self._one(
            "SELECT chain, private_key, service_id, generation, queue_count, digest, version,"
            " wants_all FROM services WHERE user_id = ? AND server_id = ? AND role = ?",
            _key(account),
        )
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

    def recompute(self, account: Account) -> SetDigest:
        """What the digest of the service should be, from its queues one by one."""
        service = self.service(account)
        count, digest = 0, agent_schema.EMPTY_DIGEST
        rows = self._db.execute(
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
        with self._reading() as connection:
            if not self.is_in_memory:
                connection.execute("BEGIN")
            yield StoredIds(connection, account, self.path)

    def repair_digest(self, account: Account) -> bool:
        """Whether what is kept of the ids of the service was wrong; it is right, and that is
        durable, when this returns. On any thread, as `read_set`."""
        with self._reading() as connection:
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

    # ---------------------------------------------------------------------- both kinds of queues

    def associate(self, account: Account, ids: Sequence[bytes]) -> list[bytes]:
        """They belong to the service of the account now. Returns those that did not before."""
        joined: list[bytes] = []
        with self._writing():
            table, generation = TABLES[account.role], self.service(account).generation
            for part in _parts(ids):
                rows = self._all(
                    f"UPDATE {table} SET service_generation = ? WHERE user_id = ? AND server_id = ?"
                    f" AND service_generation <> ? AND entity_id IN ({part.marks})"
                    " RETURNING entity_id",
                    (generation, account.user_id, account.server_id, generation, *part.ids),
                )
                joined += [entity_id for (entity_id,) in rows]
        return joined

    def dissociate(self, account: Account, ids: Sequence[bytes]) -> None:
        """They no longer belong to the service."""
        with self._writing():
            for part in _parts(ids):
                self._db.execute(
                    f"UPDATE {TABLES[account.role]} SET service_generation = 0 WHERE user_id = ?"
                    f" AND server_id = ? AND entity_id IN ({part.marks})",
                    (account.user_id, account.server_id, *part.ids),
                )

    def unassociated(
        self, account: Account, after: tuple[int, bytes] | None, count: int
    ) -> list[Subscribable]:
        """A page of those that have to be subscribed by themselves. Associating what is on a page
        moves nothing past the next one."""
        generation = self.service(account).generation
        rows = self._all(
            f"SELECT entity_id, key_kind, key, service_generation FROM {TABLES[account.role]}"
            " WHERE user_id = ? AND server_id = ? AND service_generation < ? AND is_wanted"
            " AND (service_generation, entity_id) > (?, ?)"
            " ORDER BY service_generation, entity_id LIMIT ?",
            (account.user_id, account.server_id, generation, *(after or (-1, b"")), count),
        )
        return [Subscribable(row[0], _private(row[1], row[2]), (row[3], row[0])) for row in rows]

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
            found += [
                Subscribable(row[0], _private(row[1], row[2]), (row[3], row[0])) for row in rows
            ]
        return found

    def known(self, account: Account, ids: Sequence[bytes]) -> dict[bytes, Known]:
        """How those of these ids stand that the account has."""
        found: dict[bytes, Known] = {}
        generation = self.service(account).generation
        for part in _parts(ids):
            rows = self._all(
                f"SELECT entity_id, is_wanted, service_generation = ?"
                f" FROM {TABLES[account.role]}"
                f" WHERE user_id = ? AND server_id = ? AND entity_id IN ({part.marks})",
                (generation, account.user_id, account.server_id, *part.ids),
            )
            found |= {row[0]: Known(bool(row[1]), bool(row[2])) for row in rows}
        return found

    def set_wanted(self, account: Account, ids: Sequence[bytes], is_wanted: bool) -> None:
        """Whether they are to be subscribed when the agent connects."""
        with self._writing():
            for part in _parts(ids):
                self._db.execute(
                    f"UPDATE {TABLES[account.role]} SET is_wanted = ? WHERE user_id = ?"
                    f" AND server_id = ? AND entity_id IN ({part.marks})",
                    (int(is_wanted), account.user_id, account.server_id, *part.ids),
                )

    def forget(self, account: Account, entity_id: bytes) -> None:
        """The queue or notifier is no more."""
        self._db.execute(
            f"DELETE FROM {TABLES[account.role]} WHERE server_id = ? AND entity_id = ?",
            (account.server_id, entity_id),
        )

    # ------------------------------------------------------------------------------ queues

    def add_queue(self, queue: StoredQueue) -> None:
        """Raises QueueExistsError if its name or its id is taken. `is_associated` is obeyed."""
        service = self.service(queue.account)
        generation = service.generation if queue.is_associated else 0
        notifier = queue.notifier
        values = (
            queue.account.user_id,
            queue.account.server_id,
            queue.name,
            queue.recipient_id,
            queue.sender_id,
            queue.mode.value,
            queue.key.kind.value,
            queue.key.raw,
            queue.secret,
            None if queue.envelope_key is None else queue.envelope_key.raw,
            queue.sender_dh,
            *(
                (None, None, None, None)
                if notifier is None
                else (
                    notifier.notifier_id,
                    notifier.key.kind.value,
                    notifier.key.raw,
                    notifier.secret,
                )
            ),
            queue.link_id,
            int(queue.is_wanted),
            queue.done_message_id,
            generation,
        )
        try:
            self._db.execute(
                f"INSERT INTO queues ({_QUEUE_COLUMNS}, service_generation)"
                f" VALUES ({', '.join('?' * len(values))})",
                values,
            )
        except sqlite3.IntegrityError as error:
            if self.queue_named(queue.account.user_id, queue.name) is None and "UNIQUE" not in str(
                error
            ):
                raise
            raise QueueExistsError(queue.name) from error

    def queue(self, account: Account, recipient_id: bytes) -> StoredQueue | None:
        rows = self._all(
            f"{_SELECT_QUEUE} WHERE user_id = ? AND server_id = ? AND entity_id = ?",
            (account.user_id, account.server_id, recipient_id),
        )
        return _queue(rows[0]) if rows else None

    def queue_named(self, user_id: int, name: str) -> StoredQueue | None:
        rows = self._all(f"{_SELECT_QUEUE} WHERE user_id = ? AND name = ?", (user_id, name))
        return _queue(rows[0]) if rows else None

    def queues(self, user_id: int, after: str = "", count: int = 1_000) -> list[StoredQueue]:
        """A page by name."""
        rows = self._all(
            f"{_SELECT_QUEUE} WHERE user_id = ? AND name > ? ORDER BY name LIMIT ?",
            (user_id, after, count),
        )
        return [_queue(row) for row in rows]

    def save_done(self, done: Iterable[tuple[Account, bytes, bytes]]) -> None:
        """Message ids that the application is done with, by account and queue."""
        with self._writing():
            self._db.executemany(
                "UPDATE queues SET done_message_id = ? WHERE server_id = ? AND entity_id = ?",
                [(message_id, account.server_id, queue) for account, queue, message_id in done],
            )

    def save_sender_dh(self, queue: StoredQueue, sender_dh: bytes) -> None:
        """The key of the sender, from its first message."""
        self._change_queue(queue, "sender_dh = ?", (sender_dh,))

    def save_notifier(self, queue: StoredQueue, notifier: NotifierCredentials | None) -> None:
        values: tuple[object, ...] = (None, None, None, None)
        if notifier is not None:
            key = notifier.key
            values = (notifier.notifier_id, key.kind.value, key.raw, notifier.secret)
        columns = ("notifier_id", "notifier_key_kind", "notifier_key", "notifier_secret")
        self._change_queue(queue, ", ".join(f"{column} = ?" for column in columns), values)

    # ------------------------------------------------------------------- notifiers, senders

    def add_notifier(self, notifier: StoredNotifier) -> None:
        """One that is there already is left as it is."""
        service = self.service(notifier.account)
        self._db.execute(
            "INSERT INTO notifiers (user_id, server_id, entity_id, key_kind, key,"
            " service_generation) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (
                notifier.account.user_id,
                notifier.account.server_id,
                notifier.notifier_id,
                notifier.key.kind.value,
                notifier.key.raw,
                service.generation if notifier.is_associated else 0,
            ),
        )

    def sender(self, user_id: int, uri: str) -> StoredSender | None:
        rows = self._all(
            "SELECT key_kind, key, envelope_key, is_secured FROM senders"
            " WHERE user_id = ? AND uri = ?",
            (user_id, uri),
        )
        if not rows:
            return None
        kind, key, envelope_key, is_secured = rows[0]
        return StoredSender(
            user_id,
            uri,
            _private(kind, key),
            PrivateKey(KeyKind.X25519, envelope_key),
            bool(is_secured),
        )

    def save_sender(self, sender: StoredSender) -> None:
        self._db.execute(
            "INSERT INTO senders (user_id, uri, key_kind, key, envelope_key, is_secured)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET is_secured = excluded.is_secured",
            (
                sender.user_id,
                sender.uri,
                sender.key.kind.value,
                sender.key.raw,
                sender.envelope_key.raw,
                int(sender.is_secured),
            ),
        )

    # ----------------------------------------------------------------------------- helpers

    def _make_account(self, account: Account) -> None:
        key = _key(account)
        # Looked for first: an insertion would wait for other programs, even one of nothing.
        where = "WHERE user_id = ? AND server_id = ? AND role = ?"
        if not self._all(f"SELECT 1 FROM services {where}", key):
            self._db.execute(
                "INSERT INTO services (user_id, server_id, role) VALUES (?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                key,
            )

    def _change_service(self, account: Account, change: str, values: Sequence[object]) -> None:
        self._make_account(account)
        where = "WHERE user_id = ?{} AND server_id = ?{} AND role = ?{}"
        first = len(values) + 1
        self._db.execute(
            f"UPDATE services SET {change} {where.format(first, first + 1, first + 2)}",
            (*values, *_key(account)),
        )

    def _change_queue(self, queue: StoredQueue, change: str, values: Sequence[object]) -> None:
        changed = self._db.execute(
            f"UPDATE queues SET {change} WHERE server_id = ? AND entity_id = ?",
            (*values, queue.account.server_id, queue.recipient_id),
        )
        if changed.rowcount == 0:
            raise UnknownQueueError(queue.name)

    def _one(self, statement: str, values: Sequence[object] = ()) -> _Row:
        row: _Row | None = self._db.execute(statement, values).fetchone()
        if row is None:
            raise ConfigError(f"{self.path} has no such row; was it deleted by another program?")
        return row

    def _all(self, statement: str, values: Sequence[object] = ()) -> list[_Row]:
        return self._db.execute(statement, values).fetchall()

    @contextmanager
    def _reading(self) -> Generator[sqlite3.Connection]:
        if self.is_in_memory:
            try:
                yield self._db
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            return
        # It may be closed by another thread than the one that made it.
        connection = sqlite3.connect(
            self._uri,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            uri=True,
            check_same_thread=False,
        )
        with closing(connection):
            connection.execute("PRAGMA synchronous = FULL")
            agent_schema.prepare(connection)
            yield connection

    @contextmanager
    def _writing(self) -> Generator[None]:
        """One transaction, whole or not at all."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


class _Part(msgspec.Struct):
    ids: Sequence[bytes]

    @property
    def marks(self) -> str:
        return ", ".join("?" * len(self.ids))


def _parts(ids: Sequence[bytes]) -> Generator[_Part]:
    for start in range(0, len(ids), _STATEMENT_ID_COUNT):
        yield _Part(ids[start : start + _STATEMENT_ID_COUNT])


def _key(account: Account) -> tuple[int, int, str]:
    return account.user_id, account.server_id, account.role.value


def _chain(encoded: bytes) -> tuple[bytes, ...]:
    return msgspec.msgpack.decode(encoded, type=tuple[bytes, ...])


def _private(kind: str, raw: bytes) -> PrivateKey:
    return PrivateKey(KeyKind(kind), raw)


def _queue(row: _Row) -> StoredQueue:
    (user_id, server_id, name, recipient_id, sender_id, mode, kind, key, secret) = row[:9]
    (envelope_key, sender_dh, notifier_id, notifier_kind, notifier_key, notifier_secret) = row[9:15]
    (link_id, is_wanted, done_message_id, is_associated) = row[15:]
    notifier = None
    if notifier_id is not None:
        notifier = NotifierCredentials(
            notifier_id, _private(notifier_kind, notifier_key), notifier_secret
        )
    return StoredQueue(
        Account(user_id, server_id),
        name,
        recipient_id,
        sender_id,
        QueueMode(mode),
        _private(kind, key),
        secret,
        None if envelope_key is None else PrivateKey(KeyKind.X25519, envelope_key),
        sender_dh,
        notifier,
        link_id,
        bool(is_wanted),
        bool(is_associated),
        done_message_id,
    )


def _make_private(path: Path) -> None:
    """The file holds keys: nobody but its owner may read it. Raises ConfigError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be used as a store: {error.strerror}") from error

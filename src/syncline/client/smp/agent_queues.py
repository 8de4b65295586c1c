"""Queues that an agent reads, with their keys, in its store."""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

from syncline.client.smp.agent_accounts import make_account
from syncline.client.smp.agent_database import Row
from syncline.client.smp.agent_members import StoredMembers, private_key
from syncline.client.smp.agent_records import Account, NotifierCredentials, StoredQueue
from syncline.errors import QueueExistsError, UnknownQueueError
from syncline.links.private_keys import PrivateKey
from syncline.values.queue_records import QueueMode
from syncline.wire.smp.keys import KeyKind

_COLUMNS: Final = (
    "user_id, server_id, name, entity_id, sender_id, mode, key_kind, key, secret, envelope_key,"
    " sender_dh, notifier_id, notifier_key_kind, notifier_key, notifier_secret, link_id,"
    " is_wanted, done_message_id"
)
_SELECT: Final = (
    f"SELECT {_COLUMNS}, service_generation > 0 AND service_generation IS ("
    " SELECT generation FROM services WHERE services.user_id = queues.user_id"
    " AND services.server_id = queues.server_id AND role = 'M') FROM queues"
)


class StoredQueues(StoredMembers):
    """See the module."""

    def add_queue(self, queue: StoredQueue) -> None:
        """Raises QueueExistsError if its name or its id is taken. `is_associated` is obeyed."""
        values = _values(queue)
        try:
            with self._writing() as db:
                generation = make_account(db, queue.account)
                db.execute(
                    f"INSERT INTO queues ({_COLUMNS}, service_generation)"
                    f" VALUES ({', '.join('?' * (len(values) + 1))})",
                    (*values, generation if queue.is_associated else 0),
                )
        except sqlite3.IntegrityError as error:
            if self.queue_named(queue.account.user_id, queue.name) is None and "UNIQUE" not in str(
                error
            ):
                raise
            raise QueueExistsError(queue.name) from error

    def queue(self, account: Account, recipient_id: bytes) -> StoredQueue | None:
        rows = self._all(
            f"{_SELECT} WHERE user_id = ? AND server_id = ? AND entity_id = ?",
            (account.user_id, account.server_id, recipient_id),
        )
        return _queue(rows[0]) if rows else None

    def queue_named(self, user_id: int, name: str) -> StoredQueue | None:
        rows = self._all(f"{_SELECT} WHERE user_id = ? AND name = ?", (user_id, name))
        return _queue(rows[0]) if rows else None

    def queues(self, user_id: int, after: str = "", count: int = 1_000) -> list[StoredQueue]:
        """A page by name."""
        rows = self._all(
            f"{_SELECT} WHERE user_id = ? AND name > ? ORDER BY name LIMIT ?",
            (user_id, after, count),
        )
        return [_queue(row) for row in rows]

    def save_done(self, done: Iterable[tuple[Account, bytes, bytes]]) -> None:
        """Message ids that the application is done with, by account and queue."""
        with self._writing() as db:
            db.executemany(
                "UPDATE queues SET done_message_id = ? WHERE server_id = ? AND entity_id = ?",
                [(message_id, account.server_id, queue) for account, queue, message_id in done],
            )

    def save_sender_dh(self, queue: StoredQueue, sender_dh: bytes) -> None:
        """The key of the sender, from its first message."""
        self._change_queue(queue, "sender_dh = ?", (sender_dh,))

    def save_notifier(self, queue: StoredQueue, notifier: NotifierCredentials | None) -> None:
        columns = ("notifier_id", "notifier_key_kind", "notifier_key", "notifier_secret")
        change = ", ".join(f"{column} = ?" for column in columns)
        self._change_queue(queue, change, _notifier_values(notifier))

    def _change_queue(self, queue: StoredQueue, change: str, values: Sequence[object]) -> None:
        with self._writing() as db:
            changed = db.execute(
                f"UPDATE queues SET {change} WHERE server_id = ? AND entity_id = ?",
                (*values, queue.account.server_id, queue.recipient_id),
            )
        if changed.rowcount == 0:
            raise UnknownQueueError(queue.name)


def _values(queue: StoredQueue) -> tuple[object, ...]:
    """In the order of the columns."""
    return (
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
        *_notifier_values(queue.notifier),
        queue.link_id,
        int(queue.is_wanted),
        queue.done_message_id,
    )


def _notifier_values(notifier: NotifierCredentials | None) -> tuple[object, ...]:
    if notifier is None:
        return None, None, None, None
    key = notifier.key
    return notifier.notifier_id, key.kind.value, key.raw, notifier.secret


def _queue(row: Row) -> StoredQueue:
    (user_id, server_id, name, recipient_id, sender_id, mode, kind, key, secret) = row[:9]
    (envelope_key, sender_dh, notifier_id, notifier_kind, notifier_key, notifier_secret) = row[9:15]
    (link_id, is_wanted, done_message_id, is_associated) = row[15:]
    notifier = None
    if notifier_id is not None:
        notifier = NotifierCredentials(
            notifier_id, private_key(notifier_kind, notifier_key), notifier_secret
        )
    return StoredQueue(
        Account(user_id, server_id),
        name,
        recipient_id,
        sender_id,
        QueueMode(mode),
        private_key(kind, key),
        secret,
        None if envelope_key is None else PrivateKey(KeyKind.X25519, envelope_key),
        sender_dh,
        notifier,
        link_id,
        bool(is_wanted),
        bool(is_associated),
        done_message_id,
    )

"""Where an agent keeps its keys, its queues and its services: one SQLite file, for its owner alone.

    agent_database   the file, its connections and transactions
    agent_accounts   users, servers, and the services of both together
    agent_members    what queues and notifiers have in common
    agent_queues     queues that are read here
    agent_store      queues of others: whose notifications are followed, or that are sent to

Every change is durable when its method returns, and one transaction. Methods are called on any
thread; they wait for the disk, so an event loop has writes done elsewhere (`store_turns`).
"""

from syncline.client.smp.agent_accounts import make_account
from syncline.client.smp.agent_members import private_key
from syncline.client.smp.agent_queues import StoredQueues
from syncline.client.smp.agent_records import StoredNotifier, StoredSender
from syncline.links.private_keys import PrivateKey
from syncline.wire.smp.keys import KeyKind


class AgentStore(StoredQueues):
    """See the module."""

    def add_notifier(self, notifier: StoredNotifier) -> None:
        """One that is there already is left as it is."""
        with self._writing() as db:
            generation = make_account(db, notifier.account)
            db.execute(
                "INSERT INTO notifiers (user_id, server_id, entity_id, key_kind, key,"
                " service_generation) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (
                    notifier.account.user_id,
                    notifier.account.server_id,
                    notifier.notifier_id,
                    notifier.key.kind.value,
                    notifier.key.raw,
                    generation if notifier.is_associated else 0,
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
            private_key(kind, key),
            PrivateKey(KeyKind.X25519, envelope_key),
            bool(is_secured),
        )

    def save_sender(self, sender: StoredSender) -> None:
        with self._writing() as db:
            db.execute(
                "INSERT INTO senders (user_id, uri, key_kind, key, envelope_key, is_secured)"
                " VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET is_secured = excluded.is_secured",
                (
                    sender.user_id,
                    sender.uri,
                    sender.key.kind.value,
                    sender.key.raw,
                    sender.envelope_key.raw,
                    int(sender.is_secured),
                ),
            )

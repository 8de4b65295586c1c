"""What an agent keeps: keys that only their owner reads, and digests that are never wrong."""

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from syncline.certificates import ServiceCredentials, SigningKey
from syncline.client.smp import agent_schema
from syncline.client.smp.agent_records import (
    Account,
    NotifierCredentials,
    StoredNotifier,
    StoredQueue,
    StoredSender,
)
from syncline.client.smp.agent_sets import StoredIds
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.repair_plan import Known
from syncline.client.smp.session_subscriptions import ServiceSub
from syncline.core.reconciliation.sets import END
from syncline.errors import (
    ConfigError,
    CorruptionError,
    NewerFormatError,
    QueueExistsError,
    UnknownQueueError,
)
from syncline.links.private_keys import PrivateKey
from syncline.values.digests import EMPTY_DIGEST, SetDigest
from syncline.values.queue_records import QueueMode, ServiceRole
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.keys import KeyKind

KEY = PrivateKey(KeyKind.ED25519, b"k" * 32)
CREDENTIALS = ServiceCredentials((b"leaf", b"root"), SigningKey(KeyKind.ED25519, b"p" * 32))
DH = PrivateKey(KeyKind.X25519, b"x" * 32)
ROUTER = RouterAddress(b"f" * 32, ("one.example", "two.example"), 5223)


def id_of(number: int) -> bytes:
    return number.to_bytes(24)


def queue_of(account: Account, number: int, is_associated: bool = False) -> StoredQueue:
    return StoredQueue(
        account,
        f"queue {number}",
        id_of(number),
        id_of(1_000 + number),
        QueueMode.MESSAGING,
        KEY,
        b"s" * 32,
        is_associated=is_associated,
    )


def digest_of(ids: set[bytes]) -> SetDigest:
    """By the definition, without the store's own arithmetic."""
    md5 = xxh3 = total = 0
    for each in ids:
        md5 ^= int.from_bytes(hashlib.md5(each).digest())
        hash_ = int.from_bytes(xxhash.xxh3_128(each).digest())
        xxh3, total = xxh3 ^ hash_, (total + hash_) % (1 << 128)
    return SetDigest(len(ids), md5.to_bytes(16), xxh3.to_bytes(16), total.to_bytes(16))


@pytest.fixture
def store() -> Iterator[AgentStore]:
    with closing(AgentStore(":memory:")) as store:
        yield store


@pytest.fixture
def account(store: AgentStore) -> Account:
    return Account(store.user("ann"), store.server(ROUTER))


def kept(store: AgentStore, account: Account) -> SetDigest:
    return replace(store.service(account).digest, version=0)


# ------------------------------------------------------------------------------------------ opening


def test_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "agent.sqlite"
    with closing(AgentStore(path)) as store:
        store.user("ann")
        found = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert set(found.values()) == {0o600}
    assert len(found) == 3  # the write-ahead log and its index too
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite"
    path.touch(0o644)
    AgentStore(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_everything_is_there_after_closing(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite"
    with closing(AgentStore(path)) as store:
        account = Account(store.user("ann"), store.server(replace(ROUTER, password="pw")))
        store.save_credentials(account, CREDENTIALS)
        store.save_service_id(account, b"service")
        store.add_queue(queue_of(account, 1, is_associated=True))
    with closing(AgentStore(path)) as store:
        assert store.accounts() == [account]
        assert store.address(account.server_id) == replace(ROUTER, password="pw")
        service = store.service(account)
        assert service.credentials == CREDENTIALS
        digest = digest_of({id_of(1)})
        assert service.expected == ServiceSub(b"service", 1, digest.xor_md5)
        assert store.queue(account, id_of(1)) == queue_of(account, 1, is_associated=True)


def test_what_is_no_store_is_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"not a database, but long enough to look like one" * 10)
    with pytest.raises(ConfigError, match="no store of an agent"):
        AgentStore(text)
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE mine (value)")
    with pytest.raises(ConfigError, match="something else"):
        AgentStore(other)
    with pytest.raises(ConfigError, match="cannot be used"):
        AgentStore(tmp_path)


def test_store_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite"
    AgentStore(path).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {agent_schema.SCHEMA_VERSION + 1}")
    with pytest.raises(NewerFormatError):
        AgentStore(path)


def test_two_programs_use_one_store(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite"
    with closing(AgentStore(path)) as one, closing(AgentStore(path)) as two:
        account = Account(one.user("ann"), one.server(ROUTER))
        one.add_queue(queue_of(account, 1))
        assert two.queue_named(two.user("ann"), "queue 1") == queue_of(account, 1)


def test_secrets_are_not_shown(store: AgentStore, account: Account) -> None:
    queue = replace(
        queue_of(account, 1),
        key=PrivateKey(KeyKind.ED25519, b"K" * 32),
        secret=b"S" * 32,
        notifier=NotifierCredentials(b"n", PrivateKey(KeyKind.ED25519, b"N" * 32), b"M" * 32),
    )
    shown = (
        repr(queue)
        + repr(ServiceCredentials((b"c",), SigningKey(KeyKind.ED25519, b"P" * 32)))
        + repr(DH)
    )
    assert not [letter for letter in "KSNMPx" if letter * 8 in shown]


# ----------------------------------------------------------------------------------------- accounts


def test_servers_are_told_apart_by_their_key_as_well(store: AgentStore) -> None:
    others = [
        replace(ROUTER, fingerprint=b"g" * 32),
        replace(ROUTER, hosts=("one.example",)),
        replace(ROUTER, port=5224),
    ]
    assert len({store.server(address) for address in [ROUTER, *others]}) == 4
    assert store.server(ROUTER) == store.server(replace(ROUTER, password="pw"))


def test_new_credentials_and_another_id_give_up_all_associations(
    store: AgentStore, account: Account
) -> None:
    def associate() -> None:
        store.save_service_id(account, b"service")
        assert store.associate(account, [id_of(1), id_of(2)]) == [id_of(1), id_of(2)]
        assert store.associate(account, [id_of(2), id_of(9)]) == [], "nobody joins twice"
        assert kept(store, account) == digest_of({id_of(1), id_of(2)})

    store.service(account)
    store.add_queue(queue_of(account, 1))
    store.add_queue(queue_of(account, 2))
    ways: list[Callable[[], None]] = [
        lambda: store.save_credentials(account, CREDENTIALS),
        lambda: store.save_service_id(account, b"another"),
        lambda: store.forget_associations(account),
        lambda: store.forget_service_id(account),
        lambda: store.forget_credentials(account),
    ]
    for forget in ways:
        associate()
        forget()
        assert kept(store, account) == EMPTY_DIGEST
        assert [found.entity_id for found in store.unassociated(account, None, 9)] == [
            id_of(1),
            id_of(2),
        ]
    assert store.service(account).credentials is None
    associate()
    store.save_service_id(account, b"service")
    assert kept(store, account).count == 2, "the same id again is no news"


def test_intent_is_kept_until_it_is_taken_back(store: AgentStore, account: Account) -> None:
    assert store.service(account).wants_all
    store.want_all(account, False)
    assert not store.service(account).wants_all
    store.save_service_id(account, b"service")
    store.forget_credentials(account)
    assert not store.service(account).wants_all


# ------------------------------------------------------------------------------------------- queues


def test_queue_is_read_back_whole(store: AgentStore, account: Account) -> None:
    queue = StoredQueue(
        account,
        "inbox",
        id_of(1),
        id_of(2),
        QueueMode.CONTACT,
        PrivateKey(KeyKind.ED448, b"k" * 57),
        b"s" * 32,
        DH,
        b"d" * 32,
        NotifierCredentials(id_of(3), KEY, b"n" * 32),
        id_of(4),
        is_wanted=False,
        done_message_id=b"m" * 24,
    )
    store.service(account)
    store.add_queue(queue)
    assert store.queue(account, id_of(1)) == queue
    assert store.queue_named(account.user_id, "inbox") == queue
    assert store.queues(account.user_id) == [queue]
    assert store.queue(account, id_of(9)) is None


def test_names_and_ids_are_given_once(store: AgentStore, account: Account) -> None:
    store.add_queue(queue_of(account, 1))
    with pytest.raises(QueueExistsError):
        store.add_queue(replace(queue_of(account, 2), name="queue 1"))
    with pytest.raises(QueueExistsError):
        store.add_queue(replace(queue_of(account, 1), name="another"))


def test_done_messages_senders_and_notifiers_are_kept(store: AgentStore, account: Account) -> None:
    queue = queue_of(account, 1)
    with pytest.raises(UnknownQueueError):
        store.save_sender_dh(queue, b"d" * 32)
    store.add_queue(queue)
    store.save_done([(account, id_of(1), b"m" * 24)])
    store.save_sender_dh(queue, b"d" * 32)
    notifier = NotifierCredentials(id_of(3), KEY, b"n" * 32)
    store.save_notifier(queue, notifier)
    found = store.queue(account, id_of(1))
    assert found is not None
    assert (found.done_message_id, found.sender_dh) == (b"m" * 24, b"d" * 32)
    assert found.notifier == notifier
    store.save_notifier(queue, None)
    found = store.queue(account, id_of(1))
    assert found is not None
    assert found.notifier is None

    sender = StoredSender(account.user_id, "smp://…", KEY, DH)
    assert store.sender(account.user_id, "smp://…") is None
    store.save_sender(sender)
    assert store.sender(account.user_id, "smp://…") == sender
    store.save_sender(replace(sender, is_secured=True))
    assert store.sender(account.user_id, "smp://…") == replace(sender, is_secured=True)


def test_pages_go_on_while_what_is_on_them_is_associated(
    store: AgentStore, account: Account
) -> None:
    store.service(account)
    for number in range(10):
        store.add_queue(queue_of(account, number))
    store.set_wanted(account, [id_of(3)], False)
    # Half of them belonged to an earlier service.
    store.associate(account, [id_of(number) for number in range(0, 10, 2)])
    store.forget_associations(account)
    seen: list[bytes] = []
    place: tuple[int, bytes] | None = None
    while page := store.unassociated(account, place, 4):
        seen += [each.entity_id for each in page]
        store.associate(account, [each.entity_id for each in page])
        place = page[-1].place
    assert sorted(seen) == [id_of(number) for number in range(10) if number != 3]
    assert store.unassociated(account, None, 4) == []
    found = store.subscribable(account, [id_of(3), id_of(77)])
    assert [(each.entity_id, each.key) for each in found] == [(id_of(3), KEY)]


# ----------------------------------------------------------------------------------------- triggers


def test_roles_have_their_own_digests(store: AgentStore, account: Account) -> None:
    notifier_account = replace(account, role=ServiceRole.NOTIFIER)
    store.service(account)
    store.service(notifier_account)
    store.add_queue(queue_of(account, 1, is_associated=True))
    store.add_notifier(StoredNotifier(notifier_account, id_of(2), KEY, is_associated=True))
    store.add_notifier(StoredNotifier(notifier_account, id_of(2), KEY))
    assert kept(store, account) == digest_of({id_of(1)})
    assert kept(store, notifier_account) == digest_of({id_of(2)})
    store.dissociate(notifier_account, [id_of(1), id_of(2)])
    assert kept(store, notifier_account) == EMPTY_DIGEST
    assert kept(store, account) == digest_of({id_of(1)})


def test_digest_is_right_after_a_cascaded_delete(store: AgentStore) -> None:
    ann, bob = store.user("ann"), store.user("bob")
    here, there = store.server(ROUTER), store.server(replace(ROUTER, port=1))
    accounts = [Account(user, server) for user in (ann, bob) for server in (here, there)]
    for number, account in enumerate(accounts):
        store.service(account)
        store.add_queue(queue_of(account, 10 * number, is_associated=True))
        store.add_queue(queue_of(account, 10 * number + 1, is_associated=True))
    store.delete_user(ann)
    store.delete_server(there)
    assert store.accounts() == [Account(bob, here)]
    assert kept(store, Account(bob, here)) == digest_of({id_of(20), id_of(21)})


def test_association_without_a_service_is_refused(store: AgentStore, account: Account) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="no service of this generation"):
        store._db.execute(
            "INSERT INTO queues (user_id, server_id, name, entity_id, sender_id, mode, key_kind,"
            " key, secret, service_generation) VALUES (?, ?, '', x'01', x'', 'M', '', x'', x'', 1)",
            (account.user_id, account.server_id),
        )
    store.add_queue(queue_of(account, 1))
    with pytest.raises(sqlite3.IntegrityError, match="no service of this generation"):
        store._db.execute("UPDATE queues SET service_generation = 7")


def test_replaced_row_leaves_the_service(store: AgentStore, account: Account) -> None:
    columns = "user_id, server_id, name, entity_id, sender_id, mode, key_kind, key, secret"
    store.add_queue(queue_of(account, 1, is_associated=True))
    store._db.execute(f"REPLACE INTO queues ({columns}) SELECT {columns} FROM queues")
    assert kept(store, account) == EMPTY_DIGEST


def test_id_changed_by_hand_is_counted_as_it_is(store: AgentStore, account: Account) -> None:
    store.add_queue(queue_of(account, 1, is_associated=True))
    store._db.execute("UPDATE queues SET entity_id = ?", (id_of(2),))
    assert kept(store, account) == digest_of({id_of(2)})


def test_service_deleted_by_hand_takes_its_associations_along(
    store: AgentStore, account: Account
) -> None:
    store.add_queue(queue_of(account, 1, is_associated=True))
    store._db.execute("DELETE FROM services")
    assert kept(store, account) == EMPTY_DIGEST
    assert [each.entity_id for each in store.unassociated(account, None, 9)] == [id_of(1)]


def test_generation_never_goes_back(store: AgentStore, account: Account) -> None:
    store.add_queue(queue_of(account, 1))
    store.forget_associations(account)
    with pytest.raises(sqlite3.IntegrityError, match="never goes back"):
        store._db.execute("UPDATE services SET generation = 1")


# --------------------------------------------------------------------------- sets and their digests


def ids_in(store: AgentStore, account: Account) -> set[bytes]:
    with store.read_set(account) as ids:
        return {row.tobytes() for rows in ids.iterate(b"", END) for row in rows}


def filled(path: Path | str) -> tuple[AgentStore, Account]:
    """Three queues, two of them with the service."""
    store = AgentStore(path)
    account = Account(store.user("ann"), store.server(ROUTER))
    for number in range(3):
        store.add_queue(queue_of(account, number, is_associated=number < 2))
    return store, account


@pytest.mark.parametrize("is_in_memory", [True, False])
def test_set_has_the_associated_ids_alone(tmp_path: Path, is_in_memory: bool) -> None:
    store, account = filled(":memory:" if is_in_memory else tmp_path / "agent.sqlite")
    with closing(store):
        assert ids_in(store, account) == {id_of(0), id_of(1)}
        store.forget_associations(account)
        assert ids_in(store, account) == set()
        store.associate(account, [id_of(2)])
        with store.read_set(account) as ids:
            assert ids.size() == 1
            assert ids.version() == store.service(account).digest.version
            assert ids.kept == ids.counted() == store.service(account).digest
        assert ids_in(store, replace(account, role=ServiceRole.NOTIFIER)) == set()
        assert ids_in(store, Account(99, 99)) == set()
        assert Account(99, 99) not in store.accounts()


def test_set_stays_as_it_was_while_it_is_read(tmp_path: Path) -> None:
    store, account = filled(tmp_path / "agent.sqlite")
    with closing(store), store.read_set(account) as ids:
        store.forget(account, id_of(0))
        store.associate(account, [id_of(2)])
        assert ids.size() == 2
        assert ids.lower_bound(b"") == id_of(0)
        assert ids.counted() == ids.kept
        assert ids_in(store, account) == {id_of(1), id_of(2)}


def test_set_is_read_on_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store, account = filled("agent.sqlite")
    # Wherever the program is by then.
    monkeypatch.chdir("/")
    with closing(store), ThreadPoolExecutor(1) as threads:
        assert threads.submit(ids_in, store, account).result() == {id_of(0), id_of(1)}
        damage(store, account)
        assert threads.submit(store.repair_digest, account).result()
        assert store.service(account).digest == store.recompute(account)


def damage(store: AgentStore, account: Account) -> None:
    store._db.execute("UPDATE services SET queue_count = 9, digest = x'00'")
    assert store.service(account).digest != store.recompute(account)


@pytest.mark.parametrize("is_in_memory", [True, False])
def test_damaged_digest_is_repaired_once(tmp_path: Path, is_in_memory: bool) -> None:
    store, account = filled(":memory:" if is_in_memory else tmp_path / "agent.sqlite")
    with closing(store):
        assert not store.repair_digest(account)
        version = store.service(account).digest.version
        damage(store, account)
        assert store.repair_digest(account)
        assert store.service(account).digest == store.recompute(account)
        assert store.service(account).digest.version == version + 1
        assert not store.repair_digest(account)
        assert not store.repair_digest(Account(99, 99))


@pytest.mark.parametrize("change_count", [1, 3])
def test_digest_of_a_set_that_changes_meanwhile_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change_count: int
) -> None:
    """Others are held up only if they change it each time."""
    store, account = filled(tmp_path / "agent.sqlite")
    counted, numbers = StoredIds.counted, iter(range(100, 100 + change_count))

    def counted_and_changed(ids: StoredIds) -> SetDigest:
        found = counted(ids)
        for number in numbers:
            store.add_queue(queue_of(account, number, is_associated=True))
            break
        return found

    with closing(store):
        damage(store, account)
        monkeypatch.setattr(StoredIds, "counted", counted_and_changed)
        assert store.repair_digest(account)
        assert store.service(account).digest.count == 2 + change_count
        assert store.service(account).digest == store.recompute(account)


def test_store_in_memory_is_free_again_after_a_failed_look() -> None:
    store, account = filled(":memory:")
    with closing(store):
        store._db.execute("UPDATE queues SET entity_id = x'00' WHERE name = 'queue 0'")
        with pytest.raises(CorruptionError, match="24 bytes"):
            store.repair_digest(account)
        store.dissociate(account, [id_of(1)])


def test_known_ids_are_told_as_they_stand(store: AgentStore, account: Account) -> None:
    for number in range(3):
        store.add_queue(queue_of(account, number, is_associated=number == 0))
    store.set_wanted(account, [id_of(1)], False)
    assert store.known(account, [id_of(number) for number in range(4)]) == {
        id_of(0): Known(is_wanted=True, is_associated=True),
        id_of(1): Known(is_wanted=False, is_associated=False),
        id_of(2): Known(is_wanted=True, is_associated=False),
    }
    store.forget_associations(account)
    assert not store.known(account, [id_of(0)])[id_of(0)].is_associated


QUEUE_NUMBERS = st.integers(0, 5)
ACCOUNT_NUMBERS = st.integers(0, 3)


class Digests(RuleBasedStateMachine):
    """Any statements in any order: each digest is that of a recomputation, and of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.store = AgentStore(":memory:")
        self.model: dict[Account, set[bytes]] = {}
        self.queues: dict[tuple[int, bytes], Account] = {}

    def teardown(self) -> None:
        self.store.close()

    def account(self, number: int) -> Account:
        account = Account(
            self.store.user("ab"[number % 2]),
            self.store.server(replace(ROUTER, port=1 + number // 2)),
        )
        self.store.service(account)
        self.model.setdefault(account, set())
        return account

    @rule(at=ACCOUNT_NUMBERS, queue=QUEUE_NUMBERS, is_associated=st.booleans())
    def add(self, at: int, queue: int, is_associated: bool) -> None:
        account = self.account(at)
        with suppress(QueueExistsError):
            self.store.add_queue(queue_of(account, queue, is_associated))
            self.queues[account.server_id, id_of(queue)] = account
            if is_associated:
                self.model[account].add(id_of(queue))

    @rule(at=ACCOUNT_NUMBERS, queues=st.lists(QUEUE_NUMBERS, max_size=4))
    def associate(self, at: int, queues: list[int]) -> None:
        account = self.account(at)
        own = {id_of(each) for each in queues}
        own = {each for each in own if self.queues.get((account.server_id, each)) == account}
        joined = self.store.associate(account, [id_of(each) for each in queues])
        assert set(joined) == own - self.model[account]
        assert len(joined) == len(set(joined))
        self.model[account] |= own

    @rule(at=ACCOUNT_NUMBERS, queues=st.lists(QUEUE_NUMBERS, max_size=4))
    def dissociate(self, at: int, queues: list[int]) -> None:
        account = self.account(at)
        self.store.dissociate(account, [id_of(each) for each in queues])
        self.model[account] -= {id_of(each) for each in queues}

    @rule(at=ACCOUNT_NUMBERS, queue=QUEUE_NUMBERS)
    def forget(self, at: int, queue: int) -> None:
        account = self.account(at)
        if self.queues.get((account.server_id, id_of(queue))) == account:
            self.store.forget(account, id_of(queue))
            del self.queues[account.server_id, id_of(queue)]
            self.model[account].discard(id_of(queue))

    @rule(at=ACCOUNT_NUMBERS, how=st.sampled_from(["associations", "service_id", "credentials"]))
    def forget_all(self, at: int, how: str) -> None:
        account = self.account(at)
        getattr(self.store, f"forget_{how}")(account)
        self.model[account].clear()

    @rule(at=ACCOUNT_NUMBERS, service_id=st.sampled_from([b"one", b"two"]))
    def identify(self, at: int, service_id: bytes) -> None:
        account = self.account(at)
        if self.store.service(account).service_id != service_id:
            self.model[account].clear()
        self.store.save_service_id(account, service_id)

    @rule(at=ACCOUNT_NUMBERS)
    def delete_user(self, at: int) -> None:
        user = self.account(at).user_id
        self._drop(lambda each: each.user_id == user)
        self.store.delete_user(user)

    @rule(at=ACCOUNT_NUMBERS)
    def delete_server(self, at: int) -> None:
        server = self.account(at).server_id
        self._drop(lambda each: each.server_id == server)
        self.store.delete_server(server)

    @rule(at=ACCOUNT_NUMBERS)
    def delete_service_by_hand(self, at: int) -> None:
        account = self.account(at)
        self.store._db.execute(
            "DELETE FROM services WHERE user_id = ? AND server_id = ?",
            (account.user_id, account.server_id),
        )
        self.model[account].clear()

    @rule(at=ACCOUNT_NUMBERS, queue=QUEUE_NUMBERS, other=QUEUE_NUMBERS)
    def change_id_by_hand(self, at: int, queue: int, other: int) -> None:
        account = self.account(at)
        key, new = (account.server_id, id_of(queue)), (account.server_id, id_of(other))
        if self.queues.get(key) == account and new not in self.queues:
            self.store._db.execute(
                "UPDATE queues SET entity_id = ? WHERE server_id = ? AND entity_id = ?",
                (id_of(other), *key),
            )
            self.queues[new] = self.queues.pop(key)
            if id_of(queue) in self.model[account]:
                self.model[account] ^= {id_of(queue), id_of(other)}

    @rule(at=ACCOUNT_NUMBERS, queue=QUEUE_NUMBERS)
    def replace_by_hand(self, at: int, queue: int) -> None:
        account = self.account(at)
        columns = "server_id, name, entity_id, sender_id, mode, key_kind, key, secret"
        if self.queues.get((account.server_id, id_of(queue))) == account:
            self.store._db.execute(
                f"REPLACE INTO queues (user_id, {columns}) SELECT user_id, {columns} FROM queues"
                " WHERE server_id = ? AND entity_id = ?",
                (account.server_id, id_of(queue)),
            )
            self.model[account].discard(id_of(queue))

    def _drop(self, is_gone: Callable[[Account], bool]) -> None:
        self.model = {each: ids for each, ids in self.model.items() if not is_gone(each)}
        self.queues = {key: each for key, each in self.queues.items() if not is_gone(each)}

    @invariant()
    def digests_are_right(self) -> None:
        for account in self.store.accounts():
            found = self.store.service(account).digest
            assert found == self.store.recompute(account)
            assert replace(found, version=0) == digest_of(self.model[account])
            with self.store.read_set(account) as ids:
                assert ids.counted() == found
                assert not self.store.repair_digest(account)


TestDigests = Digests.TestCase
TestDigests.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)

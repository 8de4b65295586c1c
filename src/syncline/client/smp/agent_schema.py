"""The tables of an agent's store, and the triggers that keep the digest of each service.

A queue belongs to the service of its account while its `service_generation` equals the
`generation` of that service. So all associations are given up in one step, by a generation that is
one higher, however many queues there are; and associations of an earlier service can never pass
for ones of the present service.

What always holds, whatever statement changes a row, cascaded deletes included:
- `queue_count` and `digest` of a service are those of the ids of the queues that belong to it.
- A queue's generation is 0, or one that its service has or had.
- Accounts are told apart by user, role and the whole server: its hosts, its port and its key.

Queues name their user and server themselves. A trigger that had to look for them in another table
would find nothing once a cascade has taken that row first.
"""

import hashlib
import sqlite3

import xxhash

SCHEMA_VERSION = 1
# MD5, XXH3-128 and the sum of the latter, 16 bytes each.
EMPTY_DIGEST = bytes(48)

_SUM_MODULUS = 1 << 128

_TABLES = """
CREATE TABLE users (
    user_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE servers (
    server_id INTEGER PRIMARY KEY,
    fingerprint BLOB NOT NULL,
    hosts TEXT NOT NULL,
    port INTEGER NOT NULL,
    password TEXT,
    UNIQUE (fingerprint, hosts, port)
) STRICT;

CREATE TABLE services (
    user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
    server_id INTEGER NOT NULL REFERENCES servers ON DELETE CASCADE,
    role TEXT NOT NULL,
    chain BLOB,
    private_key BLOB,
    service_id BLOB,
    generation INTEGER NOT NULL DEFAULT 1,
    queue_count INTEGER NOT NULL DEFAULT 0,
    digest BLOB NOT NULL DEFAULT (zeroblob(48)),
    version INTEGER NOT NULL DEFAULT 0,
    wants_all INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (user_id, server_id, role)
) STRICT, WITHOUT ROWID;

CREATE TABLE queues (
    queue_id INTEGER PRIMARY KEY,
    user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
    server_id INTEGER NOT NULL REFERENCES servers ON DELETE CASCADE,
    entity_id BLOB NOT NULL,
    service_generation INTEGER NOT NULL DEFAULT 0,
    is_wanted INTEGER NOT NULL DEFAULT 1,
    key_kind TEXT NOT NULL,
    key BLOB NOT NULL,
    name TEXT NOT NULL,
    sender_id BLOB NOT NULL,
    mode TEXT NOT NULL,
    secret BLOB NOT NULL,
    envelope_key BLOB,
    sender_dh BLOB,
    notifier_id BLOB,
    notifier_key_kind TEXT,
    notifier_key BLOB,
    notifier_secret BLOB,
    link_id BLOB,
    done_message_id BLOB,
    UNIQUE (server_id, entity_id),
    UNIQUE (user_id, name)
) STRICT;

CREATE TABLE notifiers (
    notifier_row INTEGER PRIMARY KEY,
    user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
    server_id INTEGER NOT NULL REFERENCES servers ON DELETE CASCADE,
    entity_id BLOB NOT NULL,
    service_generation INTEGER NOT NULL DEFAULT 0,
    is_wanted INTEGER NOT NULL DEFAULT 1,
    key_kind TEXT NOT NULL,
    key BLOB NOT NULL,
    UNIQUE (server_id, entity_id)
) STRICT;

CREATE TABLE senders (
    user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
    uri TEXT NOT NULL,
    key_kind TEXT NOT NULL,
    key BLOB NOT NULL,
    envelope_key BLOB NOT NULL,
    is_secured INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (user_id, uri)
) STRICT, WITHOUT ROWID;
"""

# {table} and {role}: who belongs to a service of which role.
_MEMBER_TRIGGERS = """
CREATE INDEX {table}_by_generation
    ON {table} (user_id, server_id, service_generation, entity_id);

CREATE TRIGGER {table}_insert_check BEFORE INSERT ON {table}
    WHEN NEW.service_generation <> 0
BEGIN
    SELECT RAISE(ABORT, 'no service of this generation') WHERE NOT EXISTS (
        SELECT 1 FROM services WHERE user_id = NEW.user_id AND server_id = NEW.server_id
            AND role = '{role}' AND generation = NEW.service_generation);
END;

CREATE TRIGGER {table}_update_check
    BEFORE UPDATE OF service_generation, user_id, server_id ON {table}
    WHEN NEW.service_generation <> 0 AND (NEW.service_generation, NEW.user_id, NEW.server_id)
        IS NOT (OLD.service_generation, OLD.user_id, OLD.server_id)
BEGIN
    SELECT RAISE(ABORT, 'no service of this generation') WHERE NOT EXISTS (
        SELECT 1 FROM services WHERE user_id = NEW.user_id AND server_id = NEW.server_id
            AND role = '{role}' AND generation = NEW.service_generation);
END;

CREATE TRIGGER {table}_insert AFTER INSERT ON {table}
    WHEN NEW.service_generation <> 0
BEGIN
    UPDATE services SET queue_count = queue_count + 1, version = version + 1,
        digest = digest_with(digest, NEW.entity_id)
    WHERE user_id = NEW.user_id AND server_id = NEW.server_id AND role = '{role}'
        AND generation = NEW.service_generation;
END;

CREATE TRIGGER {table}_delete AFTER DELETE ON {table}
    WHEN OLD.service_generation <> 0
BEGIN
    UPDATE services SET queue_count = queue_count - 1, version = version + 1,
        digest = digest_without(digest, OLD.entity_id)
    WHERE user_id = OLD.user_id AND server_id = OLD.server_id AND role = '{role}'
        AND generation = OLD.service_generation;
END;

CREATE TRIGGER {table}_update
    AFTER UPDATE OF service_generation, user_id, server_id, entity_id ON {table}
    WHEN (NEW.service_generation, NEW.user_id, NEW.server_id, NEW.entity_id)
        IS NOT (OLD.service_generation, OLD.user_id, OLD.server_id, OLD.entity_id)
BEGIN
    UPDATE services SET queue_count = queue_count - 1, version = version + 1,
        digest = digest_without(digest, OLD.entity_id)
    WHERE user_id = OLD.user_id AND server_id = OLD.server_id AND role = '{role}'
        AND generation = OLD.service_generation;
    UPDATE services SET queue_count = queue_count + 1, version = version + 1,
        digest = digest_with(digest, NEW.entity_id)
    WHERE user_id = NEW.user_id AND server_id = NEW.server_id AND role = '{role}'
        AND generation = NEW.service_generation;
END;

CREATE TRIGGER services_{table}_delete AFTER DELETE ON services WHEN OLD.role = '{role}'
BEGIN
    UPDATE {table} SET service_generation = 0
    WHERE user_id = OLD.user_id AND server_id = OLD.server_id;
END;
"""

_SERVICE_TRIGGERS = """
CREATE TRIGGER services_generation_check BEFORE UPDATE OF generation ON services
    WHEN NEW.generation < OLD.generation
BEGIN
    SELECT RAISE(ABORT, 'a generation never goes back');
END;

CREATE TRIGGER services_generation AFTER UPDATE OF generation ON services
    WHEN NEW.generation > OLD.generation
BEGIN
    UPDATE services SET queue_count = 0, digest = zeroblob(48), version = version + 1
    WHERE user_id = NEW.user_id AND server_id = NEW.server_id AND role = NEW.role;
END;

CREATE TRIGGER services_move_check BEFORE UPDATE OF user_id, server_id, role ON services
BEGIN
    SELECT RAISE(ABORT, 'a service stays with its account');
END;
"""

MEMBERS = (("queues", "M"), ("notifiers", "N"))


def prepare(connection: sqlite3.Connection) -> None:
    """Settings of each connection, without which the triggers would not do what they say."""
    connection.create_function("digest_with", 2, digest_with, deterministic=True)
    connection.create_function("digest_without", 2, digest_without, deterministic=True)
    connection.execute("PRAGMA foreign_keys = ON")
    # So that `REPLACE` fires the delete triggers of what it replaces.
    connection.execute("PRAGMA recursive_triggers = ON")


def create(connection: sqlite3.Connection) -> None:
    script = [_TABLES, _SERVICE_TRIGGERS]
    script += [_MEMBER_TRIGGERS.format(table=table, role=role) for table, role in MEMBERS]
    connection.executescript(
        f"BEGIN IMMEDIATE;{''.join(script)}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;"
    )


def digest_with(digest: bytes, id_: bytes) -> bytes:
    return _changed(digest, id_, 1)


def digest_without(digest: bytes, id_: bytes) -> bytes:
    return _changed(digest, id_, -1)


def _changed(digest: bytes, id_: bytes, sign: int) -> bytes:
    md5 = hashlib.md5(id_, usedforsecurity=False).digest()
    xxh3 = xxhash.xxh3_128_digest(id_)
    both = int.from_bytes(digest[:32]) ^ int.from_bytes(md5 + xxh3)
    total = (int.from_bytes(digest[32:]) + sign * int.from_bytes(xxh3)) % _SUM_MODULUS
    return both.to_bytes(32) + total.to_bytes(16)

"""The tables and triggers of `records.sqlite`, and the way from each version to the next.

See docs/formats/records.md. Here is text only; whoever runs it has the connection.

- A digest is changed by triggers alone, in the transaction that changes the association, and only
  by a change of the set. SQLite has no XOR: `(a | b) - (a & b)` is the same for any two integers,
  and cannot overflow.
- The sum of the hashes is kept as four sums of their 32-bit parts, without carry: none overflows
  below two thousand million ids, and SQLite's own addition does.
- The functions of the triggers are the connection's. A tool that does not have them cannot change
  an association, so it cannot make a digest wrong either.
"""

from typing import Final

# "SyRe", so that `file` and others can tell.
APPLICATION_ID: Final = 0x53795265
FILE_NAME: Final = "records.sqlite"

HASH_FUNCTIONS: Final = ("md5_high", "md5_low", "xxh3_high", "xxh3_low")
SUM_COLUMNS: Final = ("sum_3", "sum_2", "sum_1", "sum_0")
_SUM_PARTS: Final = ("xxh3_high({}) >> 32", "xxh3_high({})", "xxh3_low({}) >> 32", "xxh3_low({})")
DIGEST_COLUMNS: Final = ("count", *HASH_FUNCTIONS, *SUM_COLUMNS, "version")
TOTAL_COLUMNS: Final = (
    "queues",
    "notifiers",
    "links",
    "associations",
    "notifier_associations",
    "services",
    "deleted",
)

_TABLES: Final = (
    """
    CREATE TABLE services (
        number INTEGER PRIMARY KEY,
        service_id BLOB NOT NULL UNIQUE CHECK (length(service_id) = 24),
        role TEXT NOT NULL CHECK (role IN ('M', 'N', 'P')),
        fingerprint BLOB NOT NULL UNIQUE,
        created_s INTEGER NOT NULL,
        chain BLOB NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE digests (
        service INTEGER PRIMARY KEY REFERENCES services (number),
        count INTEGER NOT NULL DEFAULT 0,
        md5_high INTEGER NOT NULL DEFAULT 0,
        md5_low INTEGER NOT NULL DEFAULT 0,
        xxh3_high INTEGER NOT NULL DEFAULT 0,
        xxh3_low INTEGER NOT NULL DEFAULT 0,
        sum_3 INTEGER NOT NULL DEFAULT 0,
        sum_2 INTEGER NOT NULL DEFAULT 0,
        sum_1 INTEGER NOT NULL DEFAULT 0,
        sum_0 INTEGER NOT NULL DEFAULT 0,
        version INTEGER NOT NULL DEFAULT 0
    ) STRICT
    """,
    """
    CREATE TABLE queues (
        number INTEGER PRIMARY KEY,
        recipient_id BLOB NOT NULL UNIQUE CHECK (length(recipient_id) = 24),
        recipient_keys BLOB NOT NULL,
        secret BLOB NOT NULL,
        sender_id BLOB NOT NULL UNIQUE CHECK (length(sender_id) = 24),
        sender_key BLOB,
        mode TEXT NOT NULL CHECK (mode IN ('M', 'C')),
        status TEXT NOT NULL CHECK (status = 'active' OR status = 'off' OR status = 'blocked'),
        block_reason TEXT,
        block_ttl_seconds INTEGER,
        used_day INTEGER NOT NULL,
        service INTEGER REFERENCES services (number),
        notifier_id BLOB CHECK (length(notifier_id) = 24),
        notifier_key BLOB,
        notifier_secret BLOB,
        notifier_service INTEGER REFERENCES services (number),
        link_id BLOB CHECK (length(link_id) = 24)
    ) STRICT
    """,
    "CREATE UNIQUE INDEX queues_notifier ON queues (notifier_id) WHERE notifier_id IS NOT NULL",
    "CREATE UNIQUE INDEX queues_link ON queues (link_id) WHERE link_id IS NOT NULL",
    # Pages of a set are read from these alone.
    """
    CREATE INDEX queues_service ON queues (service, recipient_id) WHERE service IS NOT NULL
    """,
    """
    CREATE INDEX queues_notifier_service ON queues (notifier_service, notifier_id)
    WHERE notifier_service IS NOT NULL
    """,
    # Beside the queues, whose rows stay short: most have no link, and its data is large.
    """
    CREATE TABLE links (
        queue INTEGER PRIMARY KEY REFERENCES queues (number) ON DELETE CASCADE,
        fixed BLOB NOT NULL,
        user BLOB NOT NULL
    ) STRICT
    """,
    "CREATE TABLE deleted (recipient_id BLOB PRIMARY KEY) STRICT, WITHOUT ROWID",
    f"""
    CREATE TABLE totals (
        number INTEGER PRIMARY KEY CHECK (number = 1),
        {", ".join(f"{name} INTEGER NOT NULL DEFAULT 0" for name in TOTAL_COLUMNS)}
    ) STRICT
    """,
    "INSERT INTO totals (number) VALUES (1)",
)


def _digest_change(sign: str, service: str, member: str) -> str:
    """One id comes (+) or goes (-). Nothing happens if `service` is NULL or has no digest."""
    changes = [f"count = count {sign} 1", "version = version + 1"]
    for name in HASH_FUNCTIONS:
        hashed = f"{name}({member})"
        changes.append(f"{name} = ({name} | {hashed}) - ({name} & {hashed})")
    for column, part in zip(SUM_COLUMNS, _SUM_PARTS, strict=True):
        changes.append(f"{column} = {column} {sign} ({part.format(member)} & 0xffffffff)")
    return f"UPDATE digests SET {', '.join(changes)} WHERE service = {service};"


def _association_triggers(name: str, service: str, member: str) -> tuple[str, ...]:
    """Keep the digests of the services in column `service`, whose members are in `member`."""
    gone = _digest_change("-", f"OLD.{service}", f"OLD.{member}")
    came = _digest_change("+", f"NEW.{service}", f"NEW.{member}")
    return (
        f"""
        CREATE TRIGGER {name}_made AFTER INSERT ON queues WHEN NEW.{service} IS NOT NULL
        BEGIN {came} END
        """,
        f"""
        CREATE TRIGGER {name}_gone AFTER DELETE ON queues WHEN OLD.{service} IS NOT NULL
        BEGIN {gone} END
        """,
        f"""
        CREATE TRIGGER {name}_changed AFTER UPDATE OF {service}, {member} ON queues
        WHEN NEW.{service} IS NOT OLD.{service} OR NEW.{member} IS NOT OLD.{member}
        BEGIN {gone} {came} END
        """,
    )


# Columns of a queue that a total counts, where they are not NULL.
_COUNTED: Final = {
    "notifiers": "notifier_id",
    "links": "link_id",
    "associations": "service",
    "notifier_associations": "notifier_service",
}


def _totals_change(*changes: str) -> str:
    # Without a condition SQLite would gather the rows to change in a table of their own first.
    return f"UPDATE totals SET {', '.join(changes)} WHERE number = 1;"


def _total_triggers() -> tuple[str, ...]:
    came = [f"{name} = {name} + (NEW.{column} NOTNULL)" for name, column in _COUNTED.items()]
    gone = [f"{name} = {name} - (OLD.{column} NOTNULL)" for name, column in _COUNTED.items()]
    changed = [
        f"{name} = {name} + (NEW.{column} NOTNULL) - (OLD.{column} NOTNULL)"
        for name, column in _COUNTED.items()
    ]
    differs = " OR ".join(
        f"(NEW.{column} ISNULL) <> (OLD.{column} ISNULL)" for column in _COUNTED.values()
    )
    return (
        f"""
        CREATE TRIGGER queue_made AFTER INSERT ON queues
        BEGIN {_totals_change("queues = queues + 1", *came)} END
        """,
        f"""
        CREATE TRIGGER queue_changed AFTER UPDATE OF {", ".join(_COUNTED.values())} ON queues
        WHEN {differs} BEGIN {_totals_change(*changed)} END
        """,
        f"""
        CREATE TRIGGER queue_gone AFTER DELETE ON queues BEGIN
            {_totals_change("queues = queues - 1", *gone)}
            INSERT INTO deleted VALUES (OLD.recipient_id);
        END
        """,
        f"""
        CREATE TRIGGER deleted_made AFTER INSERT ON deleted
        BEGIN {_totals_change("deleted = deleted + 1")} END
        """,
        f"""
        CREATE TRIGGER deleted_gone AFTER DELETE ON deleted
        BEGIN {_totals_change("deleted = deleted - 1")} END
        """,
        f"""
        CREATE TRIGGER service_made AFTER INSERT ON services BEGIN
            INSERT INTO digests (service) VALUES (NEW.number);
            {_totals_change("services = services + 1")}
        END
        """,
        # The digest first: then nothing is computed for the members that go.
        f"""
        CREATE TRIGGER service_gone BEFORE DELETE ON services BEGIN
            DELETE FROM digests WHERE service = OLD.number;
            UPDATE queues SET service = NULL WHERE service = OLD.number;
            UPDATE queues SET notifier_service = NULL WHERE notifier_service = OLD.number;
            {_totals_change("services = services - 1")}
        END
        """,
    )


# From no tables to version 1, from 1 to 2, and so on: what was released is never changed here.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        *_TABLES,
        *_association_triggers("association", "service", "recipient_id"),
        *_association_triggers("notifier_association", "notifier_service", "notifier_id"),
        *_total_triggers(),
    ),
)

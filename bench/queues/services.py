"""A service with very many queues: one command for all of them, beside one for each."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench.queues.router import running_router
from bench.queues.setting import Setting
from bench.support.figures import Figure, as_text, at_most, values_table
from bench.support.processes import run_worker
from syncline.certificates import ServiceCredentials, make_service_credentials
from syncline.storage.files import DiskFiles
from syncline.storage.records.base import commit
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values.ids import StreamId
from syncline.values.limits import MIB
from syncline.values.queue_records import QueueMode, QueueRecord, ServiceRecord, ServiceRole
from syncline.wire.smp.authorizations import public_key_of
from syncline.wire.smp.keys import KeyKind

_DRIVER = "bench.queues.driver"
_QUEUE_KEY = bytes(31) + b"\x01"
_BATCH_COUNT = 5_000
_SENDER_BIT = 1 << 100


@dataclass(frozen=True, slots=True)
class _Prepared:
    credentials: ServiceCredentials
    ids_hash: bytes


def measure(setting: Setting) -> list[Figure]:
    plan = setting.plan
    with setting.fresh_folder() as folder:
        with running_router(folder):
            # It makes the folder and its certificates.
            pass
        setting.status.update(f"services: {plan.association_count:,} associations")
        prepared = _prepare(folder, plan.association_count)
        bulks: list[dict[str, Any]] = []
        individuals: list[dict[str, Any]] = []
        for number in range(plan.round_count):
            setting.status.update(f"services: round {number + 1}, all at once")
            bulks.append(_run(folder, "bulk", prepared, count=plan.association_count))
            setting.status.update(f"services: round {number + 1}, one by one")
            individuals.append(
                _run(folder, "individual", prepared, individual_count=plan.individual_count)
            )
    setting.details["bulk"], setting.details["individual"] = bulks, individuals
    return _figures(setting, bulks, individuals)


def _prepare(folder: Path, count: int) -> _Prepared:
    credentials = make_service_credentials(datetime.now(UTC))
    key = public_key_of(KeyKind.ED25519, _QUEUE_KEY).encoded
    service_id = b"S" * 24
    records = SqliteRecords.open(str(folder), DiskFiles())
    records.create_service(
        ServiceRecord(service_id, ServiceRole.MESSAGING, credentials.chain, credentials.fingerprint)
    )
    for number in range(count):
        records.create_queue(
            QueueRecord(
                recipient_id=StreamId(number.to_bytes(24)),
                recipient_keys=(key,),
                secret=bytes(32),
                sender_id=(number | _SENDER_BIT).to_bytes(24),
                mode=QueueMode.MESSAGING,
                service_id=service_id,
            )
        )
        if number % _BATCH_COUNT == 0:
            commit(records)
    commit(records)
    digest = records.digest(service_id)
    assert digest.count == count
    records.close()
    return _Prepared(credentials, digest.xor_md5)


def _run(folder: Path, name: str, prepared: _Prepared, **options: object) -> dict[str, Any]:
    with running_router(folder) as router:
        found: dict[str, Any] = run_worker(
            _DRIVER,
            {
                "task": name,
                "address": router.address,
                "pid": router.pid,
                "chain": [each.hex() for each in prepared.credentials.chain],
                "service_key": prepared.credentials.key.encoded.hex(),
                "queue_key": _QUEUE_KEY.hex(),
                "ids_hash": prepared.ids_hash.hex(),
                **options,
            },
            seconds_max=3_600,
        )
        return found


def _figures(
    setting: Setting, bulks: list[dict[str, Any]], individuals: list[dict[str, Any]]
) -> list[Figure]:
    count = setting.plan.association_count
    # Per queue, so that fewer of them may be subscribed one by one.
    each_seconds = [one["seconds"] / one["count"] * count for one in individuals]
    all_seconds = [one["all_seconds"] for one in bulks]
    ratio = median(b / a for a, b in zip(all_seconds, each_seconds, strict=True))
    rows = [
        ["SUBS: answer, ms", as_text(median(one["answer_seconds"] for one in bulks) * 1e3)],
        ["SUBS: all told, s", as_text(median(all_seconds))],
        ["SUBS: CPU of the router, s", as_text(median(one["cpu_seconds"] for one in bulks))],
        ["one by one, s", as_text(median(each_seconds))],
        ["one by one: measured", as_text(individuals[-1]["count"])],
    ]
    setting.console.print(values_table(f"{count:,} associated queues", ["what", "value"], rows))
    return [
        Figure(
            f"SUBS of {count:,} empty queues: seconds until it is answered",
            median(one["answer_seconds"] for one in bulks),
            bar=at_most("< 0.05 s", 0.05),
        ),
        Figure(
            f"SUBS of {count:,} empty queues: seconds until ALLS",
            median(all_seconds),
            "SUB of each",
            median(each_seconds),
            1 / ratio,
            at_most("< 5 s", 5.0),
            f"{ratio:.0f} times as fast",
        ),
        Figure(
            f"bytes of a router with {count:,} queues subscribed",
            median(one["memory_bytes"] for one in bulks),
            bar=at_most("< 300 MB", 300 * MIB),
        ),
    ]

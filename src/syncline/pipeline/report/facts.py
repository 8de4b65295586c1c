"""Everything that the page is made of: one look at each table, all of it small."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from syncline.pipeline.report.delivery import (
    Delivery,
    Findings,
    gather_delivery,
    gather_findings,
)
from syncline.pipeline.report.documents import Documents, gather_documents, gather_names
from syncline.pipeline.report.drift import Drift, gather_drift
from syncline.pipeline.report.folding import Reader
from syncline.pipeline.report.history import Source, gather_source
from syncline.pipeline.report.logs import Logs, gather_logs
from syncline.pipeline.report.readers import Readers, gather_readers
from syncline.pipeline.report.storage import Logged, Plan, gather_logged, gather_plan
from syncline.pipeline.schemas import (
    ASSOCIATIONS,
    CLAIMS,
    CONSUMER_HEALTH,
    DELIVERY_AUDIT,
    DELIVERY_CARRY,
    DELIVERY_FINDINGS,
    DOCUMENT_STATES,
    DRIFT_ITEMS,
    EVENTS,
    RANGE_DIGESTS,
    SERVICE_DIGESTS,
    TRUNCATION_PLAN,
)
from syncline.pipeline.tables import Table, Version

# In the order in which jobs make them.
SPECS: Final = (
    EVENTS,
    DELIVERY_AUDIT,
    DELIVERY_FINDINGS,
    DELIVERY_CARRY,
    CONSUMER_HEALTH,
    DOCUMENT_STATES,
    TRUNCATION_PLAN,
    ASSOCIATIONS,
    CLAIMS,
    RANGE_DIGESTS,
    SERVICE_DIGESTS,
    DRIFT_ITEMS,
)
# Of the others, only the commits are looked at.
READ: Final = frozenset(
    spec.name for spec in SPECS if spec not in (DELIVERY_CARRY, ASSOCIATIONS, CLAIMS, RANGE_DIGESTS)
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is None has no table; an empty table gives facts that are empty."""

    sources: Mapping[str, Source]
    delivery: Delivery | None
    findings: Findings | None
    readers: Readers | None
    drift: Drift
    logged: Logged | None
    plan: Plan | None
    documents: Documents | None
    names: Mapping[bytes, str]
    logs: Logs

    def version_of(self, table: str) -> Version | None:
        return self.sources[table].version


def gather_sources(tables: Path) -> dict[str, Source]:
    """The newest version of every table. Raises TableError."""
    return {spec.name: gather_source(tables, Table(tables, spec)) for spec in SPECS}


def gather(reader: Reader, sources: Mapping[str, Source]) -> Facts:
    """Raises TableError if a table cannot be read in full."""

    def version(name: str) -> Version | None:
        return sources[name].version

    audit, findings = version(DELIVERY_AUDIT.name), version(DELIVERY_FINDINGS.name)
    events, plan = version(EVENTS.name), version(TRUNCATION_PLAN.name)
    health, states = version(CONSUMER_HEALTH.name), version(DOCUMENT_STATES.name)
    digests, items = sources[SERVICE_DIGESTS.name], sources[DRIFT_ITEMS.name]
    found = Facts(
        sources=sources,
        delivery=gather_delivery(reader, audit) if audit else None,
        findings=gather_findings(reader, findings) if findings else None,
        readers=gather_readers(reader, health) if health else None,
        drift=gather_drift(reader, digests.version, digests.commits, items.version, items.commits),
        logged=gather_logged(reader, events) if events else None,
        plan=gather_plan(reader, plan) if plan else None,
        documents=gather_documents(reader, states) if states else None,
        names={},
        logs=Logs(frozenset(), {}),
    )
    shown = list(_shown(found))
    streams = {stream for _, stream in shown if stream is not None}
    return replace(
        found,
        names=gather_names(reader, states, streams) if states else {},
        logs=gather_logs(reader, events, (store for store, _ in shown)),
    )


def _shown(facts: Facts) -> Iterator[tuple[bytes, bytes | None]]:
    """The log of each row that the page has, and its stream if it has one."""
    if facts.delivery is not None:
        yield from ((each.store, each.stream) for each in facts.delivery.slowest)
    if facts.findings is not None:
        yield from ((each.store, each.stream) for each in facts.findings.worst)
    if facts.readers is not None:
        yield from ((each.store, each.stream) for each in facts.readers.slowest)
    if facts.plan is not None:
        yield from ((each.store, each.stream) for each in facts.plan.largest)
    if facts.documents is not None:
        listed = (*facts.documents.wrong, *facts.documents.largest)
        yield from ((each.store, None) for each in listed)
    if facts.logged is not None:
        yield from ((each.store, None) for each in facts.logged.stretches)

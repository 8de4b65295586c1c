"""What an operator may see of the documents that are open: facts, read where they are kept."""

from base64 import b64encode
from dataclasses import asdict
from typing import Any

import msgspec

from syncline.core.document import Subscription
from syncline.server.documents import Documents
from syncline.server.open_document import OpenDocument
from syncline.storage.stored_documents import StoredDocument
from syncline.values.kinds import Kind


def overview(documents: Documents, now_ms: int, count_max: int) -> dict[str, Any]:
    """All that are open, those with the longest lag first."""
    listed = [_line(document, now_ms) for document in documents.opened()]
    listed.sort(key=lambda line: (-line["lag_ms"], line["name"]))
    counters = documents.counters
    return {
        "now_ms": now_ms,
        "open": len(documents),
        "connections": documents.connection_count,
        "counters": {name: getattr(counters, name) for name in counters.__slots__},
        "documents": listed[:count_max],
    }


def stored(document: StoredDocument, opened: OpenDocument | None) -> dict[str, Any]:
    """One of all that are stored."""
    facts = asdict(document) | {
        "kept_updates": document.kept_updates,
        "is_open": opened is not None,
        "readers": 0 if opened is None else len(opened.readers),
    }
    if opened is not None:
        # Of one that is so new that nothing of it is durable, the store cannot tell the name.
        facts |= {"name": opened.name, "kind": opened.kind}
    return facts


def details(documents: Documents, document: OpenDocument, now_ms: int) -> dict[str, Any]:
    """One document and everybody who has it open."""
    machine = document.machine
    rules = documents.options.lag_rules
    connected = [
        {**_place(document, each, now_ms), "is_away": False}
        for each in machine.subscriptions.values()
    ]
    away = [{**_place(document, each, now_ms), "is_away": True} for each in machine.parked.values()]
    return {
        **_line(document, now_ms),
        "incarnation": document.incarnation.hex(),
        "unfoldable": document.folding.unfoldable_count,
        "relative_lag_ms": rules.relative_ms,
        "absolute_lag_ms": rules.absolute_ms,
        "connections": connected + away,
    }


def state(document: OpenDocument) -> dict[str, Any]:
    """What a subscriber would be given now; bytes in base64."""
    shown = document.folding.shown()
    is_json = document.kind is Kind.JSON
    value: Any = msgspec.Raw(shown) if is_json else b64encode(shown).decode()
    return {
        "name": document.name,
        "kind": document.kind,
        "seq": document.machine.head,
        "state": value,
    }


def _line(document: OpenDocument, now_ms: int) -> dict[str, Any]:
    machine = document.machine
    lags = [machine.lag_ms(each, now_ms) for each in machine.subscriptions.values()]
    return {
        "name": document.name,
        "kind": document.kind,
        "head": machine.head,
        "first": machine.first,
        "snapshot_seq": machine.snapshot_seq,
        "state_bytes": document.folding.byte_count,
        "kept_updates": machine.head + 1 - machine.first,
        "readers": len(document.readers),
        "present": len(document.presence),
        "lag_ms": max(lags, default=0),
        "evicted": document.evicted_count,
        "changed_ms": document.changed_ms,
    }


def _place(document: OpenDocument, subscription: Subscription, now_ms: int) -> dict[str, Any]:
    lag = document.machine.lag_ms(subscription, now_ms)
    return {
        "connection": subscription.connection,
        "client": subscription.author,
        "epoch": subscription.epoch,
        "acked": subscription.acked,
        "sent": subscription.sent,
        "lag_ms": lag,
        "acknowledges": subscription.acknowledges,
        "joined_ms": subscription.joined_ms,
    }

"""The operator's API for SMP: queues, services and live sessions, as docs/operator-api.md tells it.

Addresses of peers are shown only where the log may hold them too (`log.ids`).
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from syncline.certificates import check_chain
from syncline.errors import (
    LimitExceededError,
    MalformedMessageError,
    RefusedError,
    UnknownQueueError,
    UnknownServiceError,
)
from syncline.server.answers import json_answer, plain_error
from syncline.server.bodies import decode, read_body
from syncline.server.smp.associating import REPAIR_COUNT_MAX
from syncline.server.smp.counters import SmpCounters
from syncline.server.smp.operating import Operating, ServiceFacts, SessionFacts
from syncline.server.smp.router import SmpRouter
from syncline.values.digests import SetDigest
from syncline.values.ids import StreamId
from syncline.values.limits import KIB
from syncline.values.queue_records import BlockReason, QueueRecord, ServiceRole
from syncline.values.repairs import Action, Repair, Verdict
from syncline.wire.smp import versions

_BODY_BYTES_MAX = 64 * KIB
# As many repairs as may be in one, with blanks between them.
_REPAIRS_BYTES_MAX = 128 * KIB
_BODY_SECONDS_MAX = 30.0
_LINE_COUNT_MAX = 1_000
_TTL_SECONDS_MAX = 10 * 365 * 24 * 60 * 60


class Block(msgspec.Struct, forbid_unknown_fields=True):
    reason: Literal["spam", "content"]
    ttl_seconds: int | None = None


class Rotate(msgspec.Struct, forbid_unknown_fields=True):
    certificate: str


class RepairLine(msgspec.Struct, forbid_unknown_fields=True):
    action: Literal["associate", "dissociate"]
    service: str
    role: Literal["M", "N"]
    id: str

    def repair(self) -> Repair:
        """Raises MalformedMessageError."""
        service, id_ = StreamId.parse(self.service), StreamId.parse(self.id)
        return Repair(Action(self.action), service, ServiceRole(self.role), id_)


class Repairs(msgspec.Struct, forbid_unknown_fields=True):
    """`store`: what they are meant for; None: whichever this is."""

    repairs: list[RepairLine]
    store: str | None = None


class SmpApi:
    """The handlers. Until `attach`, there is no router, and `absence` says why."""

    def __init__(self, absence: Callable[[], Exception], *, shows_peers: bool) -> None:
        self._absence = absence
        self._shows_peers = shows_peers
        self._router: SmpRouter | None = None
        self._address = ""
        self._store: str | None = None

    def attach(self, router: SmpRouter, address: str, store_id: bytes | None = None) -> None:
        """`store_id`: None for a store that is kept in memory, and not for long."""
        self._router = router
        self._address = address
        self._store = None if store_id is None else store_id.hex()

    def routes(self) -> list[Route]:
        return [
            Route("/api/smp", self.overview, methods=["GET"]),
            Route("/api/smp/verify", self.verify, methods=["POST"]),
            Route("/api/smp/associations", self.repair_associations, methods=["POST"]),
            Route("/api/smp/queues/{id}", self.describe_queue, methods=["GET"]),
            Route("/api/smp/queues/{id}", self.delete_queue, methods=["DELETE"]),
            Route("/api/smp/queues/{id}/block", self.block_queue, methods=["POST"]),
            Route("/api/smp/queues/{id}/unblock", self.unblock_queue, methods=["POST"]),
            Route("/api/smp/sessions", self.list_sessions, methods=["GET"]),
            Route("/api/smp/sessions/{number:int}", self.close_session, methods=["DELETE"]),
            Route("/api/services", self.list_services, methods=["GET"]),
            Route("/api/services/{id}", self.describe_service, methods=["GET"]),
            Route("/api/services/{id}", self.delete_service, methods=["DELETE"]),
            Route("/api/services/{id}/rotate", self.rotate_service, methods=["POST"]),
        ]

    async def overview(self, request: Request) -> Response:
        router = self._ready()
        facts = {
            "address": self._address,
            "store": self._store,
            "sessions": router.session_count,
            "subscribed_queues": router.subscribed_queue_count,
            "subscribed_services": router.subscribed_service_count,
            "waiting_notifications": router.waiting_notification_count,
            "drift": _drift_facts(router.counters),
        }
        return json_answer(facts)

    async def verify(self, request: Request) -> Response:
        """Lines of progress, and what was found at the end."""
        lines = self._operating().examination.run(repairs=_is_set(request, "repair"))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    async def repair_associations(self, request: Request) -> Response:
        """Each is answered by itself, in order; with `dry_run` nothing is changed."""
        is_dry = _is_set(request, "dry_run")
        body = await read_body(request, _REPAIRS_BYTES_MAX, _BODY_SECONDS_MAX)
        wanted = decode(Repairs, body)
        if len(wanted.repairs) > REPAIR_COUNT_MAX:
            raise LimitExceededError("repairs at once", len(wanted.repairs), REPAIR_COUNT_MAX)
        repairs = [each.repair() for each in wanted.repairs]
        associating = self._operating().associating
        if wanted.store is not None and wanted.store != self._store:
            raise RefusedError(
                f"these repairs are meant for store {wanted.store[:64]}, this is {self._store}; "
                "ask the router of that store"
            )
        verdicts = await (associating.judge_all if is_dry else associating.carry_out)(repairs)
        answers = [_verdict_facts(each) for each in verdicts]
        return json_answer({"store": self._store, "answers": answers})

    # Queues.

    async def describe_queue(self, request: Request) -> Response:
        return json_answer(_queue_facts(self._found(request)))

    async def delete_queue(self, request: Request) -> Response:
        await self._operating().delete_queue(self._found(request).recipient_id)
        return Response(status_code=204)

    async def block_queue(self, request: Request) -> Response:
        wanted = decode(Block, await _body(request))
        if wanted.ttl_seconds is not None and not 0 <= wanted.ttl_seconds <= _TTL_SECONDS_MAX:
            raise MalformedMessageError(f"ttl_seconds is between 0 and {_TTL_SECONDS_MAX}")
        reason = BlockReason(wanted.reason, wanted.ttl_seconds)
        await self._operating().block_queue(self._found(request).recipient_id, reason)
        return json_answer(_queue_facts(self._found(request)))

    async def unblock_queue(self, request: Request) -> Response:
        await self._operating().unblock_queue(self._found(request).recipient_id)
        return json_answer(_queue_facts(self._found(request)))

    def _found(self, request: Request) -> QueueRecord:
        """By the id of its recipient or of its sender. Raises UnknownQueueError."""
        stream = StreamId.parse(request.path_params["id"])
        record = self._operating().find_queue(stream)
        if record is None:
            raise UnknownQueueError(str(stream))
        return record

    # Sessions.

    async def list_sessions(self, request: Request) -> Response:
        sessions = self._operating().sessions()
        lines = [self._session_line(each) for each in sessions[:_LINE_COUNT_MAX]]
        return json_answer({"count": len(sessions), "sessions": lines})

    async def close_session(self, request: Request) -> Response:
        number: int = request.path_params["number"]
        if not self._operating().close_session(number):
            return plain_error(404, "UNKNOWN_SESSION", f"there is no session {number}")
        return Response(status_code=204)

    def _session_line(self, facts: SessionFacts) -> dict[str, object]:
        view = facts.deliveries
        line: dict[str, object] = {
            "session": facts.number,
            "version": min(facts.version, versions.VERSION_MAX),
            "is_extended": facts.version >= versions.EXTENDED,
            "since_ms": facts.opened_ms,
            "service": None if facts.service_id is None else _text(facts.service_id),
            "role": None if facts.role is None else facts.role.name.lower(),
            "unanswered": facts.unanswered_count,
            "backlog": facts.backlog_count,
            "queues": 0 if view is None else view.queue_count,
            "outstanding": 0 if view is None else view.outstanding_count,
            "is_paused": view is not None and view.is_paused,
            "is_folding": view is not None and view.is_folding,
        }
        if self._shows_peers:
            line["remote"] = facts.remote
        return line

    # Services.

    async def list_services(self, request: Request) -> Response:
        services = self._operating().services()
        lines = [_service_line(each) for each in services[:_LINE_COUNT_MAX]]
        return json_answer({"count": len(services), "services": lines})

    async def describe_service(self, request: Request) -> Response:
        return json_answer(_service_line(self._service(request)))

    async def delete_service(self, request: Request) -> Response:
        await self._operating().delete_service(self._service(request).record.service_id)
        return Response(status_code=204)

    async def rotate_service(self, request: Request) -> Response:
        chain = _chain(decode(Rotate, await _body(request)).certificate)
        service_id = self._service(request).record.service_id
        await self._operating().rotate_service(service_id, chain)
        return json_answer(_service_line(self._service(request)))

    def _service(self, request: Request) -> ServiceFacts:
        """Raises UnknownServiceError."""
        text: str = request.path_params["id"]
        for facts in self._operating().services():
            if _text(facts.record.service_id) == text:
                return facts
        raise UnknownServiceError(text)

    def _operating(self) -> Operating:
        return self._ready().operating

    def _ready(self) -> SmpRouter:
        if self._router is None:
            raise self._absence()
        return self._router


def _is_set(request: Request, name: str) -> bool:
    """A choice of the query. Raises MalformedMessageError."""
    wanted = request.query_params.get(name, "false")
    if wanted not in ("true", "false"):
        raise MalformedMessageError(f"{name} is true or false")
    return wanted == "true"


def _verdict_facts(verdict: Verdict) -> dict[str, str]:
    facts = {"state": verdict.state.value}
    if verdict.reason is not None:
        facts["reason"] = verdict.reason.value
    return facts


async def _body(request: Request) -> bytes:
    return await read_body(request, _BODY_BYTES_MAX, _BODY_SECONDS_MAX)


def _chain(pem: str) -> tuple[bytes, ...]:
    """Raises MalformedMessageError."""
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
    except (ValueError, x509.InvalidVersion) as error:
        raise MalformedMessageError("certificate holds no certificates in PEM") from error
    chain = tuple(each.public_bytes(Encoding.DER) for each in found)
    check_chain(chain, datetime.now(UTC))
    return chain


def _queue_facts(record: QueueRecord) -> dict[str, object]:
    """Nothing that would let anybody act for its parties."""
    block = record.block
    return {
        "queue": str(record.recipient_id),
        "mode": record.mode.name.lower(),
        "status": record.status.value,
        "block": None if block is None else {"reason": block.reason, "ttl": block.ttl_seconds},
        "is_secured": record.sender_key is not None,
        "has_link": record.link is not None,
        "has_notifier": record.notifier is not None,
        "service": None if record.service_id is None else _text(record.service_id),
        "used_day": record.used_day,
    }


def _service_line(facts: ServiceFacts) -> dict[str, object]:
    record = facts.record
    return {
        "service": _text(record.service_id),
        "role": record.role.name.lower(),
        "fingerprint": record.fingerprint.hex(),
        "created_s": record.created_s,
        "session": facts.session,
        **_digest_facts(facts.digest),
    }


def _digest_facts(digest: SetDigest) -> dict[str, object]:
    return {
        "count": digest.count,
        "xor_md5": digest.xor_md5.hex(),
        "xor_xxh3": digest.xor_xxh3.hex(),
        "sum128": digest.sum128.hex(),
        "digest_version": digest.version,
    }


def _drift_facts(counted: SmpCounters) -> dict[str, object]:
    """Since the start."""
    return {
        "openings": counted.openings_count,
        "questions": counted.questions.total(),
        "questions_refused": counted.questions_refused_count,
        "dissociated_ids": counted.dissociated_count,
        "digests_repaired": counted.digests_repaired_count,
    }


def _text(identifier: bytes) -> str:
    return urlsafe_b64encode(identifier).decode()

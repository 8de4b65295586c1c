"""The HTTP face: health, metrics and the operator's API, as docs/operator-api.md tells it."""

from collections.abc import Awaitable, Callable, Mapping

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from syncline.core.queue import read_request
from syncline.errors import MalformedMessageError, RefusedError, StorageError, SynclineError
from syncline.server.access import AccessGate
from syncline.server.answers import error_answer, json_answer, plain_error
from syncline.server.bodies import decode, number_in, read_body, split_batch
from syncline.server.document_api import DocumentApi
from syncline.server.health import Health
from syncline.server.hot_backup import HotBackup
from syncline.server.metrics import CONTENT_TYPE, Metrics
from syncline.server.pages import page_routes
from syncline.server.queues import Queues
from syncline.server.settings import Settings
from syncline.server.smp.api import SmpApi
from syncline.storage.base import EntryKind
from syncline.values import limits
from syncline.values.ids import StreamId
from syncline.values.limits import KIB

_SMALL_BODY_BYTES_MAX = 4 * KIB
_PAGE_COUNT_MAX = 1_000


class CreateQueue(msgspec.Struct, forbid_unknown_fields=True):
    queue: str | None = None
    quota: int | None = None


class Acknowledge(msgspec.Struct, forbid_unknown_fields=True):
    seq: int


class StartBackup(msgspec.Struct, forbid_unknown_fields=True):
    folder: str


class Message(msgspec.Struct):
    seq: int
    time_ms: int
    kind: str
    body: bytes


class Api:
    """The handlers. Until `attach`, everything but health answers 503."""

    def __init__(
        self,
        settings: Settings,
        health: Health,
        metrics: Metrics,
        clock_ms: Callable[[], int],
        pages: Mapping[str, tuple[str, bytes]] | None = None,
    ) -> None:
        self._settings = settings
        self._health = health
        self._metrics = metrics
        self._queues: Queues | None = None
        self._backup: HotBackup | None = None
        self.documents = DocumentApi(
            clock_ms, NotReadyError if settings.documents_enabled else _documents_off
        )
        self.smp = SmpApi(
            NotReadyError if settings.smp_enabled else _smp_off, shows_peers=settings.log_ids
        )
        self._pages = page_routes(pages or {})

    def attach(self, queues: Queues, backup: HotBackup) -> None:
        """The store is open: from here on requests are carried out."""
        self._queues = queues
        self._backup = backup

    def app(self, token: str) -> ASGIApp:
        # Looked through in this order: what is asked for most often comes first.
        routes = [
            Route("/api/queues/{id}/messages", self.append, methods=["POST"]),
            Route("/api/queues/{id}/messages", self.read, methods=["GET"]),
            Route("/api/queues/{id}/acknowledge", self.acknowledge, methods=["POST"]),
            Route("/api/queues/{id}/messages:batch", self.append_batch, methods=["POST"]),
            Route("/api/queues", self.create_queue, methods=["POST"]),
            Route("/api/queues", self.list_queues, methods=["GET"]),
            Route("/api/queues/{id}", self.describe_queue, methods=["GET"]),
            Route("/api/queues/{id}", self.delete_queue, methods=["DELETE"]),
            *self.documents.routes(),
            *self.smp.routes(),
            Route("/healthz", self.healthz, methods=["GET"]),
            Route("/readyz", self.readyz, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/api/damage", self.list_damage, methods=["GET"]),
            Route("/api/backup", self.back_up, methods=["POST"]),
            *self._pages,
        ]
        handlers: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
            SynclineError: _answer_error,
            TimeoutError: _answer_timeout,
            HTTPException: _answer_http,
        }
        app = Starlette(routes=routes, exception_handlers=handlers)
        seconds_max = float(self._settings.http_request_seconds_max)
        open_paths = {"/healthz", "/readyz", *(route.path for route in self._pages)}
        return AccessGate(app, token, seconds_max, self._metrics, frozenset(open_paths))

    # Health.

    async def healthz(self, request: Request) -> Response:
        return json_answer({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        return json_answer(self._health.report(), 200 if self._health.is_ready else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def list_damage(self, request: Request) -> Response:
        return json_answer({"damage": self._health.damage_list()})

    # Queues.

    async def create_queue(self, request: Request) -> Response:
        wanted = decode(CreateQueue, await self._small_body(request))
        stream = None if wanted.queue is None else StreamId.parse(wanted.queue)
        created = await self._ready_queues().create(stream, wanted.quota)
        return json_answer({"queue": str(created)}, 201)

    async def list_queues(self, request: Request) -> Response:
        after = request.query_params.get("after")
        count = min(number_in(request, "count", 100), _PAGE_COUNT_MAX)
        if count < 1:
            raise MalformedMessageError("count must be at least 1")
        start = None if after is None else StreamId.parse(after)
        page = await self._ready_queues().page(start, count)
        # A short page is the last one.
        following = str(page.streams[-1]) if len(page.streams) == count else None
        return json_answer(
            {
                "queues": [str(stream) for stream in page.streams],
                "unreadable": [str(stream) for stream in page.unreadable],
                "after": following,
            }
        )

    async def describe_queue(self, request: Request) -> Response:
        stream = _stream(request)
        state = self._ready_queues().state(stream)
        facts = {
            "queue": str(stream),
            "kind": state.kind.name.lower(),
            "first": state.first,
            "next": state.next,
            "unread": state.unread_count,
            "quota": state.quota,
            "is_blocked": state.is_blocked,
        }
        return json_answer(facts)

    async def delete_queue(self, request: Request) -> Response:
        await self._ready_queues().delete(_stream(request))
        return Response(status_code=204)

    # Messages.

    async def append(self, request: Request) -> Response:
        stream = _stream(request)
        queues = self._ready_queues()
        body = await self._body(request, self._settings.http_message_bytes_max)
        return json_answer({"seq": await queues.append(stream, body)}, 201)

    async def append_batch(self, request: Request) -> Response:
        stream = _stream(request)
        queues = self._ready_queues()
        body = await self._body(request, self._settings.http_body_bytes_max)
        content_type = request.headers.get("content-type", "")
        messages = split_batch(body, content_type, self._settings.http_message_bytes_max)
        first_seq, count, refusal = await queues.append_many(stream, messages)
        taken = {"first_seq": first_seq, "count": count}
        return json_answer(taken, 201) if refusal is None else error_answer(refusal, **taken)

    async def read(self, request: Request) -> Response:
        wait_seconds = min(
            number_in(request, "wait_ms", 0) / 1_000, self._settings.http_wait_seconds_max
        )
        wanted = read_request(
            number_in(request, "from", 0), number_in(request, "count", 100), limits.read_bytes_max
        )
        found = await self._ready_queues().read(_stream(request), wanted, wait_seconds)
        messages = [
            Message(entry.seq, entry.time_ms, _KIND_NAMES[entry.kind], entry.payload)
            for entry in found
        ]
        return json_answer({"messages": messages})

    async def acknowledge(self, request: Request) -> Response:
        wanted = decode(Acknowledge, await self._small_body(request))
        first = await self._ready_queues().acknowledge(_stream(request), wanted.seq)
        return json_answer({"first": first})

    # Upkeep.

    async def back_up(self, request: Request) -> Response:
        wanted = decode(StartBackup, await self._small_body(request))
        if "\0" in wanted.folder:
            raise MalformedMessageError("the folder has a NUL in its name; no folder has")
        if self._backup is None:
            raise NotReadyError
        lines = self._backup.run(wanted.folder)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    # Reading requests.

    def _ready_queues(self) -> Queues:
        if self._queues is None or self._health.is_draining:
            raise NotReadyError
        return self._queues

    async def _body(self, request: Request, bytes_max: int) -> bytes:
        return await read_body(request, bytes_max, self._settings.http_request_seconds_max)

    async def _small_body(self, request: Request) -> bytes:
        return await self._body(request, _SMALL_BODY_BYTES_MAX)


_KIND_NAMES = {kind: kind.name.lower() for kind in EntryKind}


class NotReadyError(StorageError):
    """The store is not open yet, or not any more."""

    retriable = True

    def __init__(self) -> None:
        super().__init__("the router is starting or stopping; try again in a moment")


def _documents_off() -> RefusedError:
    return RefusedError("documents are switched off here; documents.enabled switches them on")


def _smp_off() -> RefusedError:
    return RefusedError("SMP is switched off here; smp.enabled switches it on")


def _stream(request: Request) -> StreamId:
    return StreamId.parse(request.path_params["id"])


async def _answer_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, SynclineError)
    return error_answer(error)


async def _answer_timeout(_request: Request, _error: Exception) -> Response:
    answer = plain_error(408, "TIMEOUT", "the request took too long to arrive", is_retriable=True)
    answer.headers["connection"] = "close"
    return answer


async def _answer_http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = plain_error(error.status_code, "HTTP", error.detail)
    answer.headers.update(error.headers or {})
    return answer

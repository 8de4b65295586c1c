"""The operator's API for documents, as docs/operator-api.md tells it."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from syncline.errors import MalformedMessageError, UnknownDocumentError
from syncline.server import document_views
from syncline.server.answers import json_answer
from syncline.server.bodies import number_in
from syncline.server.committer import Committer
from syncline.server.documents import Documents
from syncline.server.open_document import OpenDocument
from syncline.values.ids import StreamId
from syncline.wire.names import check_document

_LINE_COUNT_MAX = 1_000
_PAGE_COUNT = 100
_PAGE_COUNT_MAX = 1_000


class DocumentApi:
    """The handlers. Until `attach`, there are no documents, and `absence` says why."""

    def __init__(self, clock_ms: Callable[[], int], absence: Callable[[], Exception]) -> None:
        self._clock_ms = clock_ms
        self._absence = absence
        self._documents: Documents | None = None
        self._committer: Committer | None = None

    def attach(self, documents: Documents, committer: Committer) -> None:
        self._documents = documents
        self._committer = committer

    def routes(self) -> list[Route]:
        return [
            Route("/api/documents", self.overview, methods=["GET"]),
            Route("/api/documents/{name:path}", self.describe, methods=["GET"]),
            Route("/api/documents/{name:path}", self.delete, methods=["DELETE"]),
        ]

    async def overview(self, request: Request) -> Response:
        documents = self._ready()
        if _has_view(request, "stored"):
            return await self._stored(documents, request)
        return json_answer(document_views.overview(documents, self._clock_ms(), _LINE_COUNT_MAX))

    async def _stored(self, documents: Documents, request: Request) -> Response:
        after = request.query_params.get("after")
        count = min(number_in(request, "count", _PAGE_COUNT), _PAGE_COUNT_MAX)
        if count < 1:
            raise MalformedMessageError("count must be at least 1")
        start = None if after is None else StreamId.parse(after)
        page, unreadable = await documents.page(start, count)
        # A short page is the last one.
        following = page[-1][0].stream if len(page) == count else None
        lines = [document_views.stored(*each) for each in page]
        names = [str(stream) for stream in unreadable]
        return json_answer({"documents": lines, "unreadable": names, "after": following})

    async def describe(self, request: Request) -> Response:
        documents = self._ready()
        document = self._found(documents, request)
        if _has_view(request, "state"):
            return json_answer(document_views.state(document))
        return json_answer(document_views.details(documents, document, self._clock_ms()))

    async def delete(self, request: Request) -> Response:
        """Everybody who has it open is told; answered once it is durable."""
        documents = self._ready()
        documents.delete(check_document(request.path_params["name"]))
        assert self._committer is not None
        await self._committer.durable()
        return Response(status_code=204)

    def _found(self, documents: Documents, request: Request) -> OpenDocument:
        name = check_document(request.path_params["name"])
        found = documents.find(name)
        if found is None:
            raise UnknownDocumentError(f"there is no document {name!r}")
        return found

    def _ready(self) -> Documents:
        if self._documents is None:
            raise self._absence()
        return self._documents


def _has_view(request: Request, view: str) -> bool:
    """Whether that is asked for in place of the usual. Raises MalformedMessageError."""
    wanted = request.query_params.get("view")
    if wanted is not None and wanted != view:
        raise MalformedMessageError(f"view is {view}, or is left out")
    return wanted == view

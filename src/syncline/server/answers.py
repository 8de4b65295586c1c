"""Answers of the HTTP face: JSON bodies, and the status and code that each error has.

An error is `{"error": code, "message": sentence, "retriable": bool}`, with more facts beside them
where there are some.
"""

import msgspec
from starlette.responses import Response

from syncline.errors import (
    ConfigError,
    LimitExceededError,
    MalformedMessageError,
    NotAuthorizedError,
    QueueExistsError,
    QuotaExceededError,
    RefusedError,
    StorageError,
    StoreBusyError,
    StoreFullError,
    SynclineError,
    UnexpectedMessageError,
    UnknownDocumentError,
    UnknownQueueError,
    UnknownServiceError,
)

# The first class that fits decides: the narrow ones stand above the wide ones.
_ANSWERS: tuple[tuple[type[SynclineError], int, str], ...] = (
    (NotAuthorizedError, 401, NotAuthorizedError.code),
    (UnknownQueueError, 404, UnknownQueueError.code),
    (UnknownDocumentError, 404, UnknownDocumentError.code),
    (UnknownServiceError, 404, UnknownServiceError.code),
    (QueueExistsError, 409, QueueExistsError.code),
    (QuotaExceededError, 429, QuotaExceededError.code),
    (RefusedError, 403, RefusedError.code),
    (MalformedMessageError, 400, "MALFORMED"),
    (UnexpectedMessageError, 409, "NOT_DELIVERED"),
    (LimitExceededError, 413, "LIMIT"),
    (StoreFullError, 507, "STORE_FULL"),
    (StoreBusyError, 503, "STORE_BUSY"),
    (StorageError, 503, "STORAGE"),
    (ConfigError, 400, "CONFIG"),
)


def json_answer(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def plain_error(
    status: int, code: str, message: str, *, is_retriable: bool = False, **facts: object
) -> Response:
    body = {"error": code, "message": message, "retriable": is_retriable, **facts}
    return json_answer(body, status)


def error_answer(error: SynclineError, **facts: object) -> Response:
    status, code = next(
        (status, code) for kind, status, code in _ANSWERS if isinstance(error, kind)
    )
    answer = plain_error(status, code, str(error), is_retriable=error.retriable, **facts)
    if status == 401:
        answer.headers["www-authenticate"] = "Bearer"
    if status == 413:
        # The rest of the body is on its way and nobody will read it.
        answer.headers["connection"] = "close"
    return answer

"""Why a connection ended: close frames to codes of docs/formats/sync.md, and codes to errors."""

from syncline.errors import (
    InvalidMutationError,
    LinkClosedError,
    MalformedMessageError,
    NotAuthorizedError,
    RefusedError,
    SynclineError,
    UnexpectedMessageError,
    UnknownDocumentError,
    UnsupportedVersionError,
)

# For a close frame whose reason names no code.
_CODES = {
    1001: "going_away",
    1008: "slow",
    1009: "limit",
    4400: "malformed",
    4401: "unauthorized",
    4403: "forbidden",
    4408: "unexpected",
    4409: "displaced",
    4426: "version",
    4429: "limit",
}

_ERRORS: dict[str, type[SynclineError]] = {
    "malformed": MalformedMessageError,
    "unexpected": UnexpectedMessageError,
    "version": UnsupportedVersionError,
    "unauthorized": NotAuthorizedError,
    "forbidden": NotAuthorizedError,
    "unknown_document": UnknownDocumentError,
    "deleted": UnknownDocumentError,
    "invalid_mutation": InvalidMutationError,
    "displaced": LinkClosedError,
    "closed": LinkClosedError,
}


def code_of_close(number: int | None, reason: str) -> tuple[str, str]:
    """The code and the sentence of a close frame; the code is empty for a plain end."""
    code = _CODES.get(number or 0, "")
    named, colon, sentence = reason.partition(": ")
    if code and colon and named.replace("_", "").isalpha() and named.islower():
        return named, sentence
    return code, reason


def error_of(code: str, message: str) -> SynclineError:
    """What to raise for a refusal of the router."""
    found = _ERRORS.get(code)
    if found is not None:
        return found(message or code)
    return RefusedError(f"{code}: {message}")

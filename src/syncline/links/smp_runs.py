"""Questions and answers that take several blocks, over one link (docs/formats/reconciliation.md).

Each part of a question is a command of its own; the last one is answered with the whole answer, all
parts of it under one correlation id. Large ones are put together on a thread.
"""

import asyncio
from collections.abc import Sequence

from syncline.errors import MalformedMessageError, UnexpectedMessageError
from syncline.values.limits import KIB
from syncline.values.reconciliation import Answer, Request
from syncline.wire.reconciliation.answers import decode_answer
from syncline.wire.reconciliation.requests import encode_request
from syncline.wire.reconciliation.runs import Joiner

# From so many bytes on, reading takes longer than handing it to a thread.
_LARGE_BYTES = 256 * KIB


async def parts_of(request: Request) -> Sequence[bytes]:
    """The whole is made on a thread: nobody knows how large it is before."""
    return await asyncio.to_thread(lambda: list(encode_request(request)))


class AnswerRun:
    """The parts of one answer, as they come."""

    def __init__(self, bytes_max: int) -> None:
        self._joiner = Joiner(bytes_max)
        self._whole: tuple[int, bytes] | None = None

    def add(self, part: bytes) -> bool:
        """Whether it was the last. Raises ProtocolError for one that does not fit."""
        if self._whole is not None:
            raise UnexpectedMessageError("more follows a whole answer")
        self._whole = self._joiner.add(part)
        return self._whole is not None

    async def answer(self) -> Answer:
        """Raises MalformedMessageError."""
        if self._whole is None:
            raise MalformedMessageError("the question was not answered with an answer")
        kind, body = self._whole
        if len(body) < _LARGE_BYTES:
            return decode_answer(kind, body)
        return await asyncio.to_thread(decode_answer, kind, body)

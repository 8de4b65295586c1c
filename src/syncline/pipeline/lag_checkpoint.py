"""What `lag` knows after a batch, in a file for each of the last two batches.

    <batch>.state    = crc of the rest, 4 bytes | msgpack of [version, query, logs]

A batch starts from the file of the batch before it, never from its own. So one that is repeated
after a crash, wherever that was, starts from the same and comes to the same. Spark repeats no batch
but the last, so two files are enough.

The file is written before the rows of its batch are committed, and Spark notes the batch after
both.
"""

import os
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from syncline.core.tracker import LagRules
from syncline.errors import CorruptionError, PipelineError
from syncline.pipeline.lag_state import Head, LagState, LogState, Marks, OpenDocument, Reader
from syncline.storage.log.format import CRC, crc32c_extend

VERSION: Final = 1
_KEPT_COUNT: Final = 2


class LagCheckpoint:
    """The files of one query, and in memory what the last one holds."""

    def __init__(self, folder: Path, rules: LagRules, row_ms: int) -> None:
        self._folder = folder
        self._rules = rules
        self._row_ms = row_ms
        self._kept: tuple[str, int, LagState] | None = None

    def before(self, query: str, batch: int) -> LagState:
        """What was known when the batch came. Raises PipelineError, CorruptionError."""
        if batch == 0:
            return LagState(self._rules, self._row_ms)
        kept, self._kept = self._kept, None
        if kept is not None and kept[:2] == (query, batch - 1):
            return kept[2]
        return self._read(query, batch - 1)

    def save(self, query: str, batch: int, state: LagState) -> None:
        """Durable on return."""
        self._folder.mkdir(parents=True, exist_ok=True)
        content = msgspec.msgpack.encode([VERSION, query, _plain(state)])
        path = self._path(batch)
        draft = path.with_suffix(".new")
        with draft.open("wb") as file:
            file.write(CRC.pack(crc32c_extend(0, content)) + content)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._kept = (query, batch, state)
        for other in self._folder.glob("*.state"):
            if other.stem.isdecimal() and int(other.stem) <= batch - _KEPT_COUNT:
                other.unlink(missing_ok=True)

    def _path(self, batch: int) -> Path:
        return self._folder / f"{batch:012d}.state"

    def _read(self, query: str, batch: int) -> LagState:
        path = self._path(batch)
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise PipelineError(
                f"{path} is missing: a checkpoint is kept or removed as a whole; "
                "without it, lag starts from the beginning"
            ) from error
        crc, plain = content[: CRC.size], content[CRC.size :]
        if len(crc) < CRC.size or CRC.unpack(crc)[0] != crc32c_extend(0, plain):
            raise CorruptionError(str(path), 0, "the state fails its checksum")
        version, found_query, logs = cast(tuple[int, str, Any], msgspec.msgpack.decode(plain))
        if version != VERSION or found_query != query:
            raise PipelineError(
                f"{path} is of another query or version; remove the checkpoint to start anew"
            )
        return _state(logs, self._rules, self._row_ms)


def _plain(state: LagState) -> list[Any]:
    return [
        [
            store,
            log.now_ms,
            log.unsure_position,
            list(log.heads.items()),
            [
                [stream, document.head, document.marks.pairs, _plain_readers(document)]
                for stream, document in log.documents.items()
            ],
            list(log.restless),
        ]
        for store, log in state.logs.items()
    ]


def _plain_readers(document: OpenDocument) -> list[tuple[object, ...]]:
    return [
        (
            each.acked,
            each.joined_ms,
            each.session,
            each.joined_position,
            each.seen_position,
            each.told_ms,
            each.told_acked,
            each.told_head,
            each.told_rule,
        )
        for each in document.readers.values()
    ]


def _state(logs: Any, rules: LagRules, row_ms: int) -> LagState:
    state = LagState(rules, row_ms)
    for store, now_ms, unsure_position, heads, documents, restless in logs:
        known = {stream: Head(*head) for stream, head in heads}
        log = LogState(now_ms, unsure_position, known, {}, set(restless))
        for stream, head, pairs, readers in documents:
            marks = Marks()
            for seq, time_ms in pairs:
                marks.add(seq, time_ms)
            found = [Reader(*each) for each in readers]
            log.documents[stream] = OpenDocument(
                head, marks, {each.session: each for each in found}
            )
        state.logs[store] = log
    return state

"""Records checked while the router serves, because an operator asks for it.

Everything is read on a thread; the answer tells how far it is, and at the end what was found. When
the operator goes away, the check ends.
"""

import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, Generator
from contextlib import closing
from dataclasses import asdict
from functools import partial
from threading import Event
from typing import Final

import msgspec

from syncline.errors import RefusedError, StorageError
from syncline.server.logs import Log
from syncline.server.smp.counters import SmpCounters
from syncline.server.smp.digest_repairs import tell_repair
from syncline.server.threads import on_thread
from syncline.storage.records.base import DigestMismatch, Records, RecordsReport
from syncline.values.digests import SetDigest

# One line of progress for so much time at most; a step that takes longer takes what it takes.
_LINE_SECONDS: Final = 0.5
# What is told in full, so that a line stays short; all are counted.
_MISMATCH_COUNT_MAX: Final = 50
_DAMAGE_COUNT_MAX: Final = 20
_DAMAGE_CHARACTERS_MAX: Final = 200
_BUSY: Final = "a check is running; wait for its end"


class Examination:
    """One at a time. The answer is a line of JSON every now and then, and one at the end."""

    def __init__(self, records: Records, counters: SmpCounters, log: Log) -> None:
        self._records = records
        self._counters = counters
        self._log = log
        self._is_running = False

    def run(self, *, repairs: bool) -> AsyncGenerator[bytes]:
        """Raises RefusedError."""
        if self._is_running:
            raise RefusedError(_BUSY)
        return self._lines(repairs=repairs)

    async def _lines(self, *, repairs: bool) -> AsyncGenerator[bytes]:
        if self._is_running:
            # Another came in between.
            yield _line({"error": _BUSY})
            return
        self._is_running = True
        is_stopped = Event()
        read_count = 0
        try:
            steps = self._records.check(repairs=repairs, is_stopped=is_stopped.is_set)
            with closing(steps):
                report = None
                while report is None:
                    advance = partial(_advance, steps)
                    step_count, report = await on_thread(advance, on_leaving=is_stopped.set)
                    read_count += step_count
                    if report is None:
                        yield _line({"read_ids": read_count})
            self._tell(report)
            yield _line({"done": True, "read_ids": read_count} | report_facts(report))
        except StorageError as error:
            yield _line({"error": str(error)})
        finally:
            self._is_running = False

    def _tell(self, report: RecordsReport) -> None:
        for damage in report.damage[:_DAMAGE_COUNT_MAX]:
            self._log.error("the records are damaged", reason=damage)
        if not report.is_repaired:
            return
        for mismatch in report.mismatches:
            tell_repair(mismatch, self._log, self._counters)
        if report.kept_counts != report.found_counts:
            self._log.error("counters of the records were wrong and are repaired")


def _advance(steps: Generator[int, None, RecordsReport]) -> tuple[int, RecordsReport | None]:
    """Some steps: how many ids were read, and what was found if that was the end."""
    until = time.monotonic() + _LINE_SECONDS
    read_count = 0
    while True:
        try:
            read_count += next(steps)
        except StopIteration as end:
            return read_count, end.value
        if time.monotonic() >= until:
            return read_count, None


def report_facts(report: RecordsReport) -> dict[str, object]:
    kept, found = report.kept_counts, report.found_counts
    return {
        "whole": report.is_whole,
        "left_whole": report.is_left_whole,
        "repaired": report.is_repaired and not report.is_whole,
        "kept_counts": None if kept is None else asdict(kept),
        "found_counts": None if found is None else asdict(found),
        "mismatch_count": len(report.mismatches),
        "mismatches": [_mismatch_facts(each) for each in report.mismatches[:_MISMATCH_COUNT_MAX]],
        "damage_count": len(report.damage),
        "damage": [text[:_DAMAGE_CHARACTERS_MAX] for text in report.damage[:_DAMAGE_COUNT_MAX]],
    }


def _mismatch_facts(mismatch: DigestMismatch) -> dict[str, object]:
    kept = mismatch.kept
    return {
        "service": urlsafe_b64encode(mismatch.service_id).decode(),
        "role": mismatch.role.name.lower(),
        "kept": None if kept is None else _digest_facts(kept),
        "found": _digest_facts(mismatch.found),
    }


def _digest_facts(digest: SetDigest) -> dict[str, object]:
    return {
        "count": digest.count,
        "xor_md5": digest.xor_md5.hex(),
        "xor_xxh3": digest.xor_xxh3.hex(),
        "sum128": digest.sum128.hex(),
    }


def _line(facts: dict[str, object]) -> bytes:
    return msgspec.json.encode(facts) + b"\n"

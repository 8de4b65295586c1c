"""Rows for the kernel, what it says of them in the oracle's words, and runs in several pieces."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from syncline.kernels import delivery_rows as codes
from syncline.kernels.delivery import Outcome, Rules, settle_blocks
from syncline.kernels.delivery_logs import LogFacts
from syncline.kernels.delivery_rows import LogRows, blocks
from syncline.kernels.delivery_tally import COUNTS, RULES
from syncline.kernels.latency import ENTRY, highest_of
from tests.unit.kernels.delivery_oracle import Found, Row, Rulebook

STORE = b"store of the log"


def key_of(stream: int) -> bytes:
    return STORE + stream.to_bytes(24, "big")


@dataclass(frozen=True)
class Log:
    """A history: its rows, which streams are documents, starts and stretches with their times."""

    rows: tuple[Row, ...]
    documents: frozenset[int]
    starts: tuple[tuple[int, int], ...] = ()
    stretches: tuple[tuple[int, int, int], ...] = ()
    is_branch: bool = False

    def newest_ms(self) -> int:
        return max((row.time_ms for row in self.rows), default=0)

    def facts(self, before: "Log | None" = None) -> LogFacts:
        starts = np.array(self.starts, np.int64).reshape(-1, 2).T
        stretches = np.array(self.stretches, np.int64).reshape(-1, 3).T
        return LogFacts(
            STORE,
            self.newest_ms(),
            -1 if before is None else before.newest_ms(),
            start_places=starts[0],
            start_ms=starts[1],
            stretch_from=stretches[0],
            stretch_to=np.maximum.accumulate(stretches[1]),
            stretch_ms=np.maximum.accumulate(stretches[2]),
            is_branch=self.is_branch,
        )

    def book(self, rules: Rules) -> Rulebook:
        return Rulebook(rules.late_ms, rules.lost_after_ms, rules.is_over, self.facts())

    def up_to(self, place: int) -> "Log":
        """As it was when it had come as far as that."""
        return replace(
            self,
            rows=tuple(row for row in self.rows if row.place < place),
            starts=tuple(each for each in self.starts if each[0] < place),
            stretches=tuple(each for each in self.stretches if each[0] < place),
        )


def log_rows(rows: Sequence[Row], documents: frozenset[int]) -> LogRows:
    streams = sorted({row.stream for row in rows})
    number = {stream: place for place, stream in enumerate(streams)}
    keys = np.frombuffer(b"".join(map(key_of, streams)), np.uint8).reshape(-1, 40)
    columns = np.array([row[2:] for row in rows], np.int64).reshape(-1, 6).T
    code = np.array([row.code for row in rows], np.int16)
    is_message = np.isin(code, (codes.MESSAGE, codes.MARKER))
    is_document = np.array([row.stream in documents for row in rows], np.bool_)
    place, time_ms, session, first, last, detail = columns
    return LogRows(
        *(keys, np.array([number[row.stream] for row in rows], np.int64), code, place, time_ms),
        *(session, first, last, detail),
        np.where(is_message, is_document, -1).astype(np.int8),
        is_new=True,
    )


def carried_rows(outcome: Outcome) -> LogRows:
    carry = outcome.carry
    code = carry.code.astype(np.int16)
    return LogRows(
        *(outcome.keys, carry.key, code, carry.place, carry.time_ms, carry.session),
        *(carry.first, carry.last, carry.detail),
        np.where(code == codes.HEAD, carry.detail & 1, -1).astype(np.int8),
        is_new=False,
    )


def settled(
    rows: Sequence[Row],
    documents: frozenset[int],
    facts: LogFacts,
    rules: Rules,
    before: Outcome | None = None,
    *,
    block_rows: int = 5,
) -> Outcome:
    """The kernel, with the rows in blocks of a few and in no order."""
    parts = [rows[at : at + block_rows] for at in range(0, len(rows), block_rows)]
    packed = [block for part in parts for _, block in blocks(log_rows(part, documents), 1)]
    if before is not None:
        packed = [block for _, block in blocks(carried_rows(before), 1)] + packed
    if not packed:
        packed = [block for _, block in blocks(log_rows([Row(0, codes.HEAD, 0, 0)], documents), 1)]
    return settle_blocks(packed[::-1], {STORE: facts}, rules)


def told(outcomes: Sequence[Outcome]) -> Found:
    """What runs in a row said, in the words of the oracle; what is open is as of the last."""
    found = Found()
    for outcome in outcomes:
        streams = [int.from_bytes(bytes(key[16:]), "big") for key in outcome.keys]
        hours = outcome.hours
        starts = np.append(0, hours.latency_ends)
        for row, (key, hour) in enumerate(zip(hours.key, hours.hour, strict=True)):
            stream = streams[key]
            for what, count in zip(COUNTS, hours.counts[row].tolist(), strict=True):
                if count:
                    found.counts[stream, int(hour), what] += count
            taken = hours.latency[starts[row] : starts[row + 1]].view(ENTRY)
            values = highest_of(taken["bucket"].astype(np.int64))
            took = np.repeat(values, taken["count"]).tolist()
            if took:
                found.took.setdefault((stream, int(hour)), []).extend(took)
        rows = outcome.findings
        for at in range(len(rows.rule)):
            found.find(
                RULES[rows.rule[at]],
                streams[rows.key[at]],
                int(rows.session[at]),
                int(rows.seq[at]),
                int(rows.last_seq[at]),
            )
        found.clock_back += outcome.clock_back_count
    found.pending, found.waiting = outcomes[-1].pending_count, outcomes[-1].waiting_count
    return found


def in_buckets(found: Found) -> Found:
    """What took how long, as exactly as the kernel tells it."""
    from syncline.kernels.latency import buckets_of

    took = {
        key: sorted(highest_of(buckets_of(np.array(values, np.int64))).tolist())
        for key, values in found.took.items()
    }
    return Found(
        Counter(found.counts),
        took,
        Counter(found.findings),
        found.pending,
        found.waiting,
        found.clock_back,
    )


def compared(found: Found) -> dict[str, object]:
    tidy = in_buckets(found)
    return {
        "counts": dict(tidy.counts),
        "took": tidy.took,
        "findings": dict(tidy.findings),
        "pending": tidy.pending,
        "waiting": tidy.waiting,
        "clock_back": tidy.clock_back,
    }

"""A router as the audit sees it, which keeps all promises, or breaks some on purpose."""

from dataclasses import dataclass, field
from random import Random

from syncline.kernels import delivery_rows as codes
from tests.unit.kernels.delivery_histories import Log
from tests.unit.kernels.delivery_oracle import Row

DOCUMENTS = (1, 2)
QUEUES = (3, 4)
START_MS = 1_700_000_000_000
AUTHORS = (0, 71, 72)


@dataclass
class Reader:
    session: int
    acknowledges: bool
    author: int
    sent: int
    acked: int


@dataclass
class Stream:
    number: int
    head: int = 0
    passed: int = 0
    authors: dict[int, int] = field(default_factory=dict)
    readers: list[Reader] = field(default_factory=list)
    # Of a queue: the message that is with its reader.
    held: int = 0


class Router:
    """Writes a log by chance. With `breaks` it also does what a router must never do."""

    def __init__(self, random: Random, *, breaks: bool = False, dark_deletes: bool = True) -> None:
        self.random, self.breaks = random, breaks
        # Whether queues are also deleted where nobody sees it, and that nobody does now.
        self.dark_deletes, self.is_dark = dark_deletes, False
        self.rows: list[Row] = []
        self.starts: list[tuple[int, int]] = []
        self.stretches: list[tuple[int, int, int]] = []
        self.place, self.now_ms = 0, START_MS
        self.streams = {number: Stream(number) for number in (*DOCUMENTS, *QUEUES)}
        self.session_count = 0
        self.start()

    def log(self) -> Log:
        return Log(
            tuple(self.rows), frozenset(DOCUMENTS), tuple(self.starts), tuple(self.stretches)
        )

    def go(self, step_count: int) -> Log:
        for _ in range(step_count):
            self.now_ms += self.random.choice((0, 1, 2, 5, 30, 700))
            stream = self.streams[self.random.choice((*DOCUMENTS, *QUEUES))]
            if stream.number in DOCUMENTS:
                self.step_document(stream)
            else:
                self.step_queue(stream)
            chance = self.random.random()
            if chance < 0.01:
                self.start()
            elif chance < 0.015:
                self.forget()
            elif chance < 0.03:
                # Everybody gets what is due before time passes.
                self.settle()
                self.now_ms += self.random.choice((4_000, 11 * 60_000, 40 * 60_000))
        return self.log()

    def note(self, stream: Stream, code: int, **numbers: int) -> Row:
        self.place += self.random.choice((1, 64, 300))
        row = Row(stream.number, code, self.place, self.now_ms, **numbers)
        self.rows.append(row)
        return row

    # The whole router.

    def start(self) -> None:
        self.place += 200
        self.starts.append((self.place, max((row.time_ms for row in self.rows), default=0)))
        self.place += 1
        for stream in self.streams.values():
            stream.readers.clear()
            stream.held = 0
        self.session_count = 0
        self.now_ms += self.random.choice((10, 2_000))

    def forget(self) -> None:
        """Things happen that nobody will know of."""
        newest = max((row.time_ms for row in self.rows), default=0)
        known, self.rows, self.is_dark = self.rows, [], True
        start = self.place + 1
        for _ in range(5):
            stream = self.streams[self.random.choice((*DOCUMENTS, *QUEUES))]
            step = self.step_document if stream.number in DOCUMENTS else self.step_queue
            step(stream)
        self.rows, self.is_dark = known, False
        self.place += 1
        self.stretches.append((start, self.place, newest))

    def settle(self) -> None:
        for number in DOCUMENTS:
            for reader in self.streams[number].readers:
                self.deliver(self.streams[number], reader, self.streams[number].head)
                if reader.acknowledges:
                    self.acknowledge(self.streams[number], reader, reader.sent)

    # Documents.

    def step_document(self, stream: Stream) -> None:
        random = self.random
        action = random.randint(0, 20)
        reader = random.choice(stream.readers) if stream.readers else None
        if action < 7:
            stream.head += 1
            author = random.choice(AUTHORS)
            stream.authors[stream.head] = author
            self.note(stream, codes.MESSAGE, last=stream.head, detail=author)
        elif action < 9 and len(stream.readers) < 3:
            self.session_count += 1
            back = random.choice((0, 0, 2, 5))
            sent = max(stream.head - back, stream.passed)
            session = self.session_count << 4 | 1
            found = Reader(session, random.random() < 0.6, random.choice(AUTHORS), sent, sent)
            stream.readers.append(found)
            self.note(
                stream,
                codes.SUBSCRIBED,
                session=session,
                first=sent + 1,
                last=int(found.acknowledges),
                detail=found.author,
            )
        elif reader is None:
            return
        elif action < 14:
            self.deliver(stream, reader, min(stream.head, reader.sent + random.choice((1, 2, 9))))
        elif action < 17 and reader.acknowledges and reader.sent > reader.acked:
            self.acknowledge(stream, reader, random.randint(reader.acked + 1, reader.sent))
        elif action == 17 and reader.sent > reader.acked and reader.acknowledges:
            numbers = {"first": reader.acked + 1, "last": stream.head}
            self.note(stream, codes.RESENT, session=reader.session, **numbers)
            reader.sent = reader.acked
        elif action == 18:
            if random.random() < 0.3:
                numbers = {"first": stream.head, "last": reader.acked}
                self.note(stream, codes.EVICTED, session=reader.session, **numbers)
            self.note(stream, codes.UNSUBSCRIBED, session=reader.session, last=stream.head)
            stream.readers.remove(reader)
            if self.breaks and stream.head > reader.sent and random.random() < 0.4:
                self.handed(stream, reader, reader.sent + 1, stream.head)
        elif action == 19:
            everybody = [each.acked if each.acknowledges else each.sent for each in stream.readers]
            passed = min([stream.head, *everybody])
            if passed > stream.passed:
                stream.passed = passed
                self.note(stream, codes.PASSED, last=passed)
        elif action == 20:
            self.note(stream, codes.REPEATED, session=reader.session, last=stream.head)

    def deliver(self, stream: Stream, reader: Reader, last: int) -> None:
        first = reader.sent + 1
        if last < first:
            return
        if self.breaks:
            fault = self.random.randint(0, 12)
            if fault == 0 and not reader.acknowledges:
                # Lost on the way.
                reader.sent = first
                return
            if fault == 1 and reader.sent > reader.acked and first > stream.passed + 1:
                first -= 1
            if fault == 2:
                self.now_ms += 6_000
            if fault == 3 and last == stream.head:
                last += 1
        self.handed(stream, reader, first, last, hides=self.breaks)
        reader.sent = min(last, stream.head)

    def handed(
        self, stream: Stream, reader: Reader, first: int, last: int, *, hides: bool = False
    ) -> None:
        wrote = [stream.authors.get(seq, 0) for seq in range(first, last + 1)]
        own = wrote.count(reader.author) if reader.author else 0
        if hides and own and self.random.random() < 0.2:
            own -= 1
        self.note(
            stream, codes.DELIVERED, session=reader.session, first=first, last=last, detail=own
        )

    def acknowledge(self, stream: Stream, reader: Reader, seq: int) -> None:
        if seq > reader.acked:
            reader.acked = seq
            self.note(stream, codes.ACKNOWLEDGED, session=reader.session, last=seq)

    # Queues.

    def step_queue(self, stream: Stream) -> None:
        random = self.random
        action = random.randint(0, 16)
        reader = stream.readers[0] if stream.readers else None
        if action < 5:
            stream.head += 1
            self.note(stream, codes.MESSAGE, last=stream.head)
        elif action < 7:
            self.session_count += 1
            found = Reader(self.session_count << 4 | 2, True, 0, 0, 0)
            self.note(stream, codes.SUBSCRIBED, session=found.session)
            stream.readers, stream.held = [found], 0
        elif action < 10 and reader is not None and not stream.held:
            if stream.head > stream.passed:
                stream.held = stream.passed + 1
                numbers = {"first": stream.held, "last": stream.held}
                self.note(stream, codes.DELIVERED, session=reader.session, **numbers)
                if self.breaks and random.random() < 0.2:
                    self.note(stream, codes.DELIVERED, session=reader.session, **numbers)
        elif action < 13 and reader is not None and stream.held:
            # In either order.
            if random.random() < 0.5:
                self.note(stream, codes.ACKNOWLEDGED, session=reader.session, last=stream.held)
                self.note(stream, codes.PASSED, last=stream.held)
            else:
                self.note(stream, codes.PASSED, last=stream.held)
                if not (self.breaks and random.random() < 0.3):
                    self.note(stream, codes.ACKNOWLEDGED, session=reader.session, last=stream.held)
            stream.passed, stream.held = stream.held, 0
        elif action == 13 and stream.head > stream.passed:
            self.note(stream, codes.EXPIRED, last=stream.passed + 1)
            self.note(stream, codes.PASSED, last=stream.passed + 1)
            stream.passed, stream.held = stream.passed + 1, 0
        elif action == 14 and random.random() < 0.2 and (self.dark_deletes or not self.is_dark):
            self.note(stream, codes.DELETED)
            for each in stream.readers:
                self.note(stream, codes.UNSUBSCRIBED, session=each.session)
            stream.head = stream.passed = stream.held = 0
            stream.readers.clear()

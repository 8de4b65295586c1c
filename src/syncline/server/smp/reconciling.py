"""Questions of a service about the set of its ids, and their answers.

A question comes in parts, each a command of its own; the last one is answered, with as many parts
as it takes. It is answered from what is durable once everything before it in its session is.

- Nothing is read, hashed or encoded in the event loop: there is one thread for that, which takes
  one question after the other. What waits for it is bounded, in all, of a service and of a session.
  What is too much is refused, and may be asked again.
- An answer goes out while the session can take more, and stops when the session is gone.
- A digest on record that is not the one of the ids that were read is repaired before it is
  answered from.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from syncline.core.reconciliation.kept import CELL_COUNT_DEFAULT
from syncline.core.reconciliation.responder import Responder
from syncline.core.reconciliation.sets import state_of
from syncline.errors import LimitExceededError, MalformedMessageError, StorageError, StoreFullError
from syncline.server.smp.calls import Call
from syncline.server.smp.connections import Connection
from syncline.server.smp.digest_repairs import tell_repair
from syncline.server.smp.faces import Answer, SessionService
from syncline.server.smp.followed_sets import FollowedLimits, FollowedSets, OutOfStepError
from syncline.server.smp.parts import Parts
from syncline.server.smp.question_runs import QuestionRuns
from syncline.server.smp.replies import Reply, refusal_text
from syncline.server.smp.tasks import Tasks
from syncline.values.digests import SetDigest
from syncline.values.reconciliation import CELL_BYTES, Change, Request, SetState
from syncline.wire.reconciliation.answers import encode_answer
from syncline.wire.reconciliation.requests import decode_request
from syncline.wire.reconciliation.runs import PART_BYTES_MAX
from syncline.wire.smp import failures
from syncline.wire.smp.commands import Recq
from syncline.wire.smp.failures import Failure, FailureError
from syncline.wire.smp.messages import Err, Ok, Reca, RouterMessage

T = TypeVar("T")

_OK = Ok()
_BUSY = failures.store("too many questions at a time, try again later")
_SECRET_BYTES = 32


class Reconciling:
    """See the module."""

    def __init__(self, parts: Parts, tasks: Tasks) -> None:
        outside, options = parts.outside, parts.outside.options
        self._parts = parts
        self._tasks = tasks
        self._records = outside.records
        self._runs = QuestionRuns(options.question_bytes_max, options.question_bytes_total_max)
        self.sets = FollowedSets(
            outside.records,
            outside.random_bytes(_SECRET_BYTES),
            FollowedLimits(
                options.followed_set_count_max,
                options.followed_bytes_max,
                options.followed_idle_ms_max,
            ),
        )
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="reconciling")
        # Sessions with a question that is not answered, or not to its end, and their services.
        self._asking: dict[int, bytes] = {}
        # Openings that are being made, by service.
        self._opening: Counter[bytes] = Counter()
        self._answer_bytes = 0
        self._is_tidying = False
        outside.records.follow_sets(self._follow)

    # Questions.

    def ask(self, call: Call, service: SessionService, command: Recq) -> Reply | None:
        """Raises FailureError."""
        if call.number in self._asking:
            raise FailureError(_BUSY)
        question = self._runs.add(call.number, command.part)
        if question is None:
            return Reply(_OK)
        if not self.has_room(service.service_id):
            self._parts.counters.questions_refused_count += 1
            raise FailureError(_BUSY)
        self._asking[call.number] = service.service_id
        self.when_durable(call, partial(self._begin, call, service.service_id, question))
        return None

    def has_room(self, service_id: bytes) -> bool:
        """For another question, or opening."""
        options = self._parts.outside.options
        of_service = self._opening[service_id] + sum(
            each == service_id for each in self._asking.values()
        )
        return (
            len(self._asking) + self._opening.total() < options.question_count_max
            and of_service < options.questions_per_service_max
            and self._answer_bytes < options.answer_bytes_total_max
        )

    def when_durable(self, call: Call, then: Callable[[], None]) -> None:
        """The command is answered by `then`, or later, once all that came before it is durable."""
        connection, committer = call.connection, self._parts.outside.records_committer
        self._parts.connections.hold(connection, 1, len(call.transmission.signed))
        connection.in_lane_count += 1

        def told(failure: StorageError | None) -> None:
            connection.in_lane_count -= 1
            # Not if the device failed. What others were refused does not matter here.
            if failure is None or committer.failure is None:
                then()

        committer.when_durable(told)

    def send(self, call: Call, message: RouterMessage) -> None:
        """The last or only message of an answer."""
        transmission = call.transmission
        self._parts.connections.let_go(call.connection, 1, len(transmission.signed))
        answer = Answer(transmission.corr_id, transmission.entity_id, message)
        self._parts.connections.send(call.connection, (answer,))

    def _begin(self, call: Call, service_id: bytes, question: tuple[int, bytes]) -> None:
        if self._is_gone(call.connection):
            del self._asking[call.number]
        else:
            self._tasks.start(self._answer(call, service_id, question), "answer to a question")

    async def _answer(self, call: Call, service_id: bytes, question: tuple[int, bytes]) -> None:
        refusal: Failure | None = failures.INTERNAL
        try:
            request = await self._on_worker(partial(decode_request, *question))
            parts = await self._made(service_id, partial(_answered, request))
            refusal = None
            self._parts.counters.questions[type(request).__name__] += 1
            await self._send_parts(call, parts)
        except MalformedMessageError:
            refusal = failures.SYNTAX
        except LimitExceededError:
            refusal = failures.LARGE_MSG
        except StorageError as error:
            refusal = failures.store(refusal_text(error))
            self._parts.outside.log.error("a question failed", reason=str(error))
        finally:
            self._asking.pop(call.number, None)
            if refusal is not None:
                self._parts.counters.refused[refusal.code] += 1
                self.send(call, Err(refusal))

    async def _send_parts(self, call: Call, parts: deque[bytes]) -> None:
        """What was sent is let go of."""
        connection, transmission = call.connection, call.transmission
        byte_count = sum(map(len, parts))
        self._answer_bytes += byte_count
        try:
            while parts:
                while not connection.session.is_writable:
                    if self._is_gone(connection):
                        return
                    await connection.resumed.wait()
                part = parts.popleft()
                byte_count -= len(part)
                self._answer_bytes -= len(part)
                message = Reca(part)
                if not parts:
                    self.send(call, message)
                    return
                answer = Answer(transmission.corr_id, transmission.entity_id, message)
                self._parts.connections.send(connection, (answer,))
                # Others have a turn between two blocks.
                await asyncio.sleep(0)
        finally:
            self._answer_bytes -= byte_count

    def _is_gone(self, connection: Connection) -> bool:
        return self._parts.connections.get(connection.number) is not connection

    # Openings.

    async def opening(self, service_id: bytes) -> bytes:
        """In one part. Raises StorageError."""
        self._opening[service_id] += 1
        try:
            parts = await self._made(service_id, _opened)
        finally:
            self._opening[service_id] -= 1
            self._opening += Counter()
        return parts[0]

    # Digests.

    async def check_digest(self, service_id: bytes) -> None:
        """Repair the digest on record if it is not that of the ids. Raises StorageError."""
        mismatch = await self._on_worker(partial(self._records.repair_digest, service_id))
        if mismatch is not None:
            tell_repair(mismatch, self._parts.outside.log, self._parts.counters)

    # Upkeep.

    def forget_session(self, number: int) -> None:
        self._runs.drop(number)

    def keep_house(self) -> None:
        """Every second or so."""
        if not self._is_tidying and not self.sets.is_idle:
            self._is_tidying = True
            self._tasks.start(self._tidy(), "upkeep of followed sets")

    async def close(self) -> None:
        """After the tasks; before the records are closed."""
        self._records.follow_sets(None)
        await asyncio.to_thread(self._worker.shutdown, wait=True, cancel_futures=True)

    def _follow(self, service_id: bytes, version: int, changes: Sequence[Change]) -> None:
        self.sets.tell(service_id, version, changes)
        if self.sets.has_much_told:
            self.keep_house()

    async def _tidy(self) -> None:
        try:
            now_ms = self._parts.outside.clock_ms()
            await self._on_worker(partial(self.sets.tidy, now_ms))
        finally:
            self._is_tidying = False

    # In the worker.

    async def _made(
        self, service_id: bytes, make: Callable[[Responder], deque[bytes]]
    ) -> deque[bytes]:
        """What `make` makes from the set, on the worker. Raises what it raises, StorageError."""
        state, parts = await self._made_once(service_id, make)
        if _is_wrong(self._records.digest(service_id), state):
            await self.check_digest(service_id)
            _, parts = await self._made_once(service_id, make)
        return parts

    async def _made_once(
        self, service_id: bytes, make: Callable[[Responder], deque[bytes]]
    ) -> tuple[SetState, deque[bytes]]:
        version = self._records.digest(service_id).version
        if self.sets.is_behind(service_id, version):
            # By a batch that is durable and not told of yet. That others are refused is no matter.
            with suppress(StoreFullError):
                await self._parts.outside.records_committer.durable()
        now_ms = self._parts.outside.clock_ms()

        def work() -> tuple[SetState, deque[bytes]]:
            found = self.sets.set_of(service_id, version, now_ms)
            try:
                try:
                    parts = make(found.responder)
                except OutOfStepError:
                    found = self.sets.read_anew(service_id)
                    parts = make(found.responder)
                return state_of(found), parts
            finally:
                self.sets.keep_bounds(now_ms)

        return await self._on_worker(work)

    async def _on_worker(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)


def _is_wrong(digest: SetDigest, state: SetState) -> bool:
    """Whether the digest on record is not that of the set, both of one version."""
    return digest.version == state.version and state_on_record(digest) != state


def state_on_record(digest: SetDigest) -> SetState:
    return SetState(digest.version, digest.count, digest.xor_xxh3, digest.sum128)


def _answered(request: Request, responder: Responder) -> deque[bytes]:
    return deque(encode_answer(responder.answer(request)))


def _opened(responder: Responder) -> deque[bytes]:
    """With as many cells as fit into one part."""
    cell_count = CELL_COUNT_DEFAULT
    while True:
        parts = deque(encode_answer(responder.opening(cell_count)))
        if len(parts) == 1:
            return parts
        surplus_bytes = sum(map(len, parts)) - PART_BYTES_MAX
        cell_count = max(0, cell_count - -(-surplus_bytes // CELL_BYTES) - 1)

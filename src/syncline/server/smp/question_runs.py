"""Questions that come in parts: one at a time of each session, put together within bounds.

A part that does not fit costs the whole question, and so does each one behind it. Together the
parts that wait for the rest take so much memory and no more: who has been silent longest goes.
"""

from dataclasses import dataclass

from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.wire.reconciliation.runs import Joiner
from syncline.wire.smp import failures
from syncline.wire.smp.failures import FailureError


@dataclass(slots=True)
class _Run:
    joiner: Joiner
    byte_count: int = 0


class QuestionRuns:
    """See the module. Sessions are known by their number."""

    def __init__(self, question_bytes_max: int, total_bytes_max: int) -> None:
        self._question_bytes_max = question_bytes_max
        self._total_bytes_max = total_bytes_max
        # In order: who was heard of last stands last.
        self._runs: dict[int, _Run] = {}
        self.byte_count = 0

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, number: int, part: bytes) -> tuple[int, bytes] | None:
        """Kind and body of a question once it is whole. Raises FailureError."""
        run = self._runs.pop(number, None) or _Run(Joiner(self._question_bytes_max))
        self.byte_count -= run.byte_count
        try:
            whole = run.joiner.add(part)
        except MalformedMessageError as error:
            raise FailureError(failures.SYNTAX) from error
        except LimitExceededError as error:
            raise FailureError(failures.LARGE_MSG) from error
        if whole is None:
            run.byte_count += len(part)
            self._keep(number, run)
        return whole

    def drop(self, number: int) -> None:
        run = self._runs.pop(number, None)
        if run is not None:
            self.byte_count -= run.byte_count

    def _keep(self, number: int, run: _Run) -> None:
        self._runs[number] = run
        self.byte_count += run.byte_count
        while self.byte_count > self._total_bytes_max and len(self._runs) > 1:
            self.drop(next(iter(self._runs)))

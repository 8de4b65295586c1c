"""Whether the router lives, whether it is ready, and what is damaged."""

from enum import Enum

from syncline.server.committer import Committer
from syncline.server.queues import Queues
from syncline.storage.base import Damage, Store

_DAMAGE_COUNT_MAX = 1_000


class Stage(Enum):
    RECOVERING = "recovering"
    SERVING = "serving"
    DRAINING = "draining"


class Health:
    """Ready: recovery is done, the store takes writes, and the router is not about to stop."""

    def __init__(self) -> None:
        self.stage = Stage.RECOVERING
        self._store: Store | None = None
        self._committer: Committer | None = None
        self._queues: Queues | None = None

    def watch(self, store: Store, committer: Committer, queues: Queues) -> None:
        self._store = store
        self._committer = committer
        self._queues = queues
        self.stage = Stage.SERVING

    @property
    def is_draining(self) -> bool:
        return self.stage is Stage.DRAINING

    @property
    def is_ready(self) -> bool:
        return not self._reasons()

    def report(self) -> dict[str, object]:
        """For `/readyz`. Damage does not make the router unready: whole queues are served."""
        return {
            "ready": self.is_ready,
            "stage": self.stage.value,
            "reasons": self._reasons(),
            "damaged_places": 0 if self._store is None else self._store.stats().damage_count,
        }

    def damage_list(self) -> list[dict[str, object]]:
        found = () if self._store is None else self._store.damage()
        return [damage_facts(damage) for damage in found[:_DAMAGE_COUNT_MAX]]

    def _reasons(self) -> list[str]:
        if self.stage is not Stage.SERVING:
            return [self.stage.value]
        reasons: list[str] = []
        if self._committer is not None and self._committer.failure is not None:
            reasons.append(str(self._committer.failure))
        if self._queues is not None and self._queues.shortage is not None:
            reasons.append(str(self._queues.shortage))
        return reasons


def damage_facts(damage: Damage) -> dict[str, object]:
    return {
        "file": damage.file,
        "offset": damage.offset,
        "reason": damage.reason,
        "queue": None if damage.stream is None else str(damage.stream),
        "first_lost_seq": damage.first_lost_seq,
        "lost_count": damage.lost_count,
    }

"""A batch of the journal: the plans of all queues it touches."""

from dataclasses import dataclass, field

from syncline.errors import StoreFullError
from syncline.storage.journal.folders import DiskUse
from syncline.storage.journal.planning import Action, PlannedChange, QueuePlan
from syncline.values.ids import StreamId


@dataclass(slots=True)
class JournalBatch:
    """Closed by the owner, carried out by whoever writes, finished by the owner."""

    deletions: list[QueuePlan]
    changes: list[PlannedChange]
    byte_count: int
    record_count: int
    now_ms: int
    # Why nothing of it was done.
    refusal: StoreFullError | None = None
    # Set once it was carried out.
    use: DiskUse | None = None
    deleted: frozenset[StreamId] = field(init=False)
    changed: frozenset[StreamId] = field(init=False)
    created: frozenset[StreamId] = field(init=False)
    replaced: frozenset[StreamId] = field(init=False)

    def __post_init__(self) -> None:
        self.deleted = frozenset(plan.stream for plan in self.deletions)
        actions = {change.plan.stream: change.plan.action for change in self.changes}
        self.changed = frozenset(actions)
        self.replaced = frozenset(
            stream for stream, action in actions.items() if action is Action.REPLACE
        )
        self.created = self.replaced | {
            stream for stream, action in actions.items() if action is Action.CREATE
        }

    @property
    def plans(self) -> list[QueuePlan]:
        return [*self.deletions, *(change.plan for change in self.changes)]

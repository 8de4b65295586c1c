"""Carries out the plans of a batch, in an order that a crash may cut anywhere.

    1. messages, snapshots and cursors are written and synced, new queues built beside their place
    2. state lines are written and synced, or the successors of a queue.log drafted
    3. drafts and new queues are renamed into place, deleted queues out of it, folders synced
    4. files that no state names any more are removed

A state line is written only after what it points at is synced. A disk that fills up does so in the
first two stages; then what they wrote is cut off again, the cut is synced, and StoreFullError says
that nothing of the batch was done. From the third stage on a failure is fatal: DeviceError.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from syncline.errors import DeviceError, StoreFullError
from syncline.storage.files import File, Files
from syncline.storage.journal.folders import DiskUse, FolderTree, remove_files, remove_tree
from syncline.storage.journal.handles import HandlePool
from syncline.storage.journal.layout import STATE_DRAFT_NAME, STATE_NAME, backup_name
from syncline.storage.journal.planning import Action, FileWrite, QueuePlan
from syncline.storage.journal.state import draft_state_log, expired_backups, swap_state_log
from syncline.storage.options import StoreOptions


@dataclass(frozen=True, slots=True)
class _Cut:
    """Undo: the file gets back the size it had."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class _Remove:
    """Undo: the file or folder, if it was made at all, goes."""

    path: str
    is_folder: bool = False


class BatchWriter:
    """Used by one thread at a time."""

    def __init__(
        self,
        files: Files,
        pool: HandlePool,
        tree: FolderTree,
        tag: str,
        options: StoreOptions,
    ) -> None:
        self._files = files
        self._pool = pool
        self._tree = tree
        # In the names of folders on their way in or out: unlike those of any other process.
        self._tag = tag
        self._options = options
        self._is_durable = options.is_durable
        self._transient_count = 0

    def write(self, plans: Sequence[QueuePlan], now_ms: int) -> DiskUse:
        """Raises StoreFullError with nothing done, DeviceError with nobody knows what."""
        use = DiskUse()
        undo: list[_Cut | _Remove] = []
        built: dict[int, str] = {}
        try:
            for number, plan in enumerate(plans):
                if plan.action is Action.CREATE:
                    built[number] = self._build(plan, undo, use)
            self._write_files(plans, undo, use)
            self._write_states(plans, now_ms, undo, use)
        except StoreFullError:
            self._undo(undo)
            raise
        try:
            self._swap(plans, built, use)
            self._remove_unwanted(plans, now_ms, use)
        except StoreFullError as error:
            raise DeviceError(error.path, "renaming", error.reason) from error
        return use

    # 1. Data.

    def _build(self, plan: QueuePlan, undo: list[_Cut | _Remove], use: DiskUse) -> str:
        self._tree.ensure_parents(plan.folder)
        draft = self._transient_path(plan.folder, "new")
        if self._files.exists(draft):
            remove_tree(self._files, draft)
        undo.append(_Remove(draft, is_folder=True))
        self._files.make_folder(draft)
        for write in (*plan.writes, FileWrite(STATE_NAME, 0, (plan.log,))):
            file = self._files.open(f"{draft}/{write.name}", create=True)
            try:
                file.write(0, write.pieces)
                if self._is_durable:
                    file.sync()
            finally:
                file.close()
            use.add(write.byte_count, 1)
        self._sync_folder(draft)
        return draft

    def _write_files(
        self, plans: Sequence[QueuePlan], undo: list[_Cut | _Remove], use: DiskUse
    ) -> None:
        writes = [
            (plan.folder, write)
            for plan in plans
            if plan.action in (Action.CHANGE, Action.REPLACE)
            for write in plan.writes
        ]
        for group in _groups(writes, self._pool.group_count):
            self._write_group(group, undo)
        for folder in dict.fromkeys(folder for folder, write in writes if write.offset == 0):
            self._sync_folder(folder)
        for _, write in writes:
            use.add(write.byte_count, write.offset == 0)

    def _write_group(
        self, group: Sequence[tuple[str, FileWrite]], undo: list[_Cut | _Remove]
    ) -> None:
        """Write all, then sync all through the same handles: they know what failed to arrive."""
        with ExitStack() as stack:
            opened: list[File] = []
            for folder, write in group:
                path, is_new = f"{folder}/{write.name}", write.offset == 0
                undo.append(_Remove(path) if is_new else _Cut(path, write.offset))
                try:
                    file = stack.enter_context(self._pool.use(path, create=is_new))
                except FileNotFoundError as error:
                    raise DeviceError(path, "opening", "the file is gone") from error
                if is_new and file.size():
                    file.truncate(0)
                file.write(write.offset, write.pieces)
                opened.append(file)
            if self._is_durable:
                for file in opened:
                    file.sync()

    # 2. States.

    def _write_states(
        self,
        plans: Sequence[QueuePlan],
        now_ms: int,
        undo: list[_Cut | _Remove],
        use: DiskUse,
    ) -> None:
        changed = [plan for plan in plans if plan.action in (Action.CHANGE, Action.REPLACE)]
        lines = [
            (plan.folder, FileWrite(STATE_NAME, plan.log_offset, (plan.log,)))
            for plan in changed
            if not plan.replaces_log
        ]
        for group in _groups(lines, self._pool.group_count):
            self._write_group(group, undo)
        use.add(sum(write.byte_count for _, write in lines), 0)
        for plan in changed:
            if plan.replaces_log:
                self._draft(plan, now_ms, undo, use)

    def _draft(
        self, plan: QueuePlan, now_ms: int, undo: list[_Cut | _Remove], use: DiskUse
    ) -> None:
        backup = self._unused_backup_name(plan.folder, now_ms) if plan.backs_up else None
        undo.append(_Remove(f"{plan.folder}/{STATE_DRAFT_NAME}"))
        if backup is not None:
            undo.append(_Remove(f"{plan.folder}/{backup}"))
        growth = draft_state_log(
            self._files, plan.folder, plan.log, backup, is_durable=self._is_durable
        )
        use.add(growth, backup is not None)

    def _unused_backup_name(self, folder: str, now_ms: int) -> str:
        while self._files.exists(f"{folder}/{backup_name(now_ms)}"):
            now_ms += 1
        return backup_name(now_ms)

    # 3. Names.

    def _swap(self, plans: Sequence[QueuePlan], built: dict[int, str], use: DiskUse) -> None:
        for plan in plans:
            if plan.replaces_log and plan.action is not Action.CREATE:
                self._pool.forget_file(f"{plan.folder}/{STATE_NAME}")
                swap_state_log(self._files, plan.folder, is_durable=self._is_durable)
        parents: dict[str, None] = {}
        gone: list[tuple[str, str]] = []
        for number, plan in enumerate(plans):
            parent = plan.folder.rpartition("/")[0]
            if plan.action is Action.DELETE:
                self._pool.forget(plan.folder)
                gone.append((plan.folder, self._transient_path(plan.folder, "gone")))
                self._files.rename(*gone[-1])
                parents[parent] = None
            elif plan.action is Action.CREATE:
                self._files.rename(built[number], plan.folder)
                parents[parent] = None
        for parent in parents:
            self._sync_folder(parent)
        for folder, remains in gone:
            removed = remove_files(self._files, remains, self._files.list(remains))
            use.add(-removed.byte_count, -removed.file_count)
            # Somebody may have put a folder there.
            remove_tree(self._files, remains)
            self._tree.remove_empty_parents(folder)

    # 4. Leftovers.

    def _remove_unwanted(self, plans: Sequence[QueuePlan], now_ms: int, use: DiskUse) -> None:
        for plan in plans:
            names = set(plan.removes)
            if plan.action is Action.REPLACE:
                names = set(self._files.list(plan.folder)) - plan.keeps - {STATE_NAME}
            elif plan.backs_up:
                found = self._files.list(plan.folder)
                names.update(expired_backups(found, now_ms, self._options))
            for name in names:
                self._pool.forget_file(f"{plan.folder}/{name}")
            removed = remove_files(self._files, plan.folder, names)
            use.add(-removed.byte_count, -removed.file_count)
            if removed.file_count:
                self._sync_folder(plan.folder)

    # When the disk is full.

    def _undo(self, steps: list[_Cut | _Remove]) -> None:
        folders: dict[str, None] = {}
        try:
            for step in reversed(steps):
                if isinstance(step, _Cut):
                    self._cut(step)
                elif self._files.exists(step.path):
                    self._pool.forget_file(step.path)
                    if step.is_folder:
                        remove_tree(self._files, step.path)
                    else:
                        self._files.remove(step.path)
                    folders[step.path.rpartition("/")[0]] = None
            for folder in folders:
                self._sync_folder(folder)
        except StoreFullError as error:
            raise DeviceError(error.path, "cutting back", error.reason) from error

    def _cut(self, step: _Cut) -> None:
        with self._pool.use(step.path) as file:
            if file.size() > step.size:
                file.truncate(step.size)
                if self._is_durable:
                    file.sync()

    # Names and syncs.

    def _transient_path(self, folder: str, word: str) -> str:
        self._transient_count += 1
        parent = folder.rpartition("/")[0]
        return f"{parent}/.{word}.{self._tag}.{self._transient_count}"

    def _sync_folder(self, folder: str) -> None:
        if self._is_durable:
            self._files.sync_folder(folder)


def _groups(
    items: Sequence[tuple[str, FileWrite]], count: int
) -> Iterator[Sequence[tuple[str, FileWrite]]]:
    for start in range(0, len(items), count):
        yield items[start : start + count]
